-- A task that is to be remembered has succeeded: say so at once, from the process that ran it, in case its
-- worker dies now.
-- KEYS, ARGV[1] as in shared/begin.lua; then identity, task id, fencing token, remember (ms).
-- Returns 1: its lock says so, 0: the lock is another grant's by now.
redis.call('ZREM', LEASES, '')
local identity, task, fence, remember_ms = argument(), argument(), argument(), number()
local lock = load_lock(identity)
if not lock or lock.task ~= task or lock.fence ~= fence then return 0 end
lock.state = 'done'
save_lock(identity, lock, NOW + remember_ms)
-- Now: what the worker says of the end counts no more if the lease was lost before.
conclude_followers(identity, task)
serve()
return 1
