-- A task that is to be remembered has succeeded: say so at once, from the process that ran it, in case its worker dies now.
-- KEYS, ARGV[1..4] as in common.lua (slots 0); then identity, task id, fencing token, remember (ms).
-- Returns 1: its lock says so, 0: the lock is another grant's by now.
redis.call('ZREM', LEASES, '')
open_locks()
local identity, task, fence, remember_ms = argument(), argument(), argument(), tonumber(argument())
local lock = load_lock(identity)
if not lock or lock[L_TASK] ~= task or lock[L_FENCE] ~= fence then return 0 end
lock[L_STATE] = 'D'
save_lock(identity, lock, NOW + remember_ms)
return 1
