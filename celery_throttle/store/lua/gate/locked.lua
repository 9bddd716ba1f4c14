-- Say who has an identity lock.
-- KEYS, ARGV[1..4] as in common.lua (slots 0); then identity.
-- Returns nil, or { state, task id, fencing token, since (ms), ms left, task id that runs next }; states as in locks.lua.
open_locks()
local identity = argument()
local lock = live_lock(identity)
if not lock or lock[L_STATE] == 'S' then return false end
local lease_ends = lock[L_STATE] == 'R' and redis.call('ZSCORE', LEASES, lock[L_TASK])
local left = tonumber(lease_ends or redis.call('ZSCORE', LOCK_ENDS, identity)) - NOW
return { lock[L_STATE], lock[L_TASK], lock[L_FENCE], lock[L_SINCE], left, lock[L_NEXT] }
