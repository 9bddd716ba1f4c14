-- Tell how many wait for a limit.
-- KEYS, ARGV[1..4] as in common.lua (slots 0, no queues); then limit.
-- Returns how many are parked in its line.
local limit = argument()
return redis.call('ZLEXCOUNT', PARKED, '[' .. limit .. '\0', '(' .. limit .. '\1')
