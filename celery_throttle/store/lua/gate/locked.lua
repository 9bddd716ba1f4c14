-- Say who has an identity lock.
-- KEYS, ARGV[1] as in shared/begin.lua; then identity.
-- Returns nil, or { lock as in shared/locks.lua, ms left }.
local identity = argument()
local lock = live_lock(identity)
serve()
if not lock or lock.state == 'started' then return false end
local lease_ends = lock.state == 'running' and redis.call('ZSCORE', LEASES, lock.task)
return { redis.call('HGET', LOCKS, identity), till_of(lease_ends or lock_till(identity)) - NOW }
