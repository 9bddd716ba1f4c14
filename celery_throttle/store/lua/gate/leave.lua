-- A worker says goodbye: what only it needed goes.
-- KEYS, ARGV[1] as in shared/begin.lua; then worker id.
-- Returns 1.
local worker = argument()
redis.call('HDEL', WORKERS, worker)
redis.call('ZREM', ENDS, 'workers:' .. worker)
return 1
