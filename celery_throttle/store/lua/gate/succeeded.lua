-- A task that is to be remembered has succeeded: say so at once, from the process that ran it, in case its
-- worker dies now. Also one that had lost its lease, and its lock with it, unless another task has the lock.
-- KEYS, ARGV[1] as in shared/begin.lua; then identity, task id, fencing token, remember (ms),
-- and 1 if its result could not be kept.
-- Returns 1: its lock says so, 0: another task has the lock, or it was taken away while the task ran.
redis.call('ZREM', LEASES, '')
local identity, task, fence, remember_ms = argument(), argument(), argument(), number()
local lost = argument() == '1' and 1 or nil
local lock = load_lock(identity)
if lock and lock.task ~= task then return 0 end
if not lock then
  local record = load_record(task)
  if record and record.lock and record.lock.unlocked then return 0 end
  lock = new_lock(task, next_stamp())
  lock.fence = fence
end
lock.state, lock.lost = 'done', lost
save_lock(identity, lock, NOW + remember_ms)
-- Now: what the worker says of the end counts no more if the lease was lost before.
to_settle('concluded', identity, task, lost)
serve()
return 1
