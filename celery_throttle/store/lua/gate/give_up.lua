-- A task will never run (revoked, expired, its publishing failed): its identity lock is free, and whoever waits for it is next.
-- KEYS, ARGV[1..4] as in common.lua (slots 0); then identity, task id.
-- Returns 1: it had the lock (or was to run next), 0: it had not, or it runs.
redis.call('ZREM', LEASES, '')
open_locks()
local identity, task = argument(), argument()
local answer = give_up_lock(identity, task)
for _, line in ipairs(joined) do promote(line) end
return answer
