-- Return the holder of an identity lock.
-- KEYS, ARGV[1] as in shared/begin.lua; then identity.
-- Returns nil, or { lock as in shared/locks.lua, ms left }. Writes nothing.
state.only_reads = true
local identity = argument()
local lock = load_lock(identity)
if not lock or lock.state == 'started' then return false end
local lease_ends = lock.state == 'running' and redis.call('ZSCORE', LEASES, lock.task)
-- The worker of the task is gone.
if lease_ends and tonumber(lease_ends) <= NOW and ended_is_lost() then return false end
return { cjson.encode(lock), till_of(lease_ends or lock_till(identity)) - NOW }
