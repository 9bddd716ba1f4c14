-- Store at once that a remembered task has succeeded, from the process that ran the task, in case its worker
-- dies now. A run that has lost its lease and its lock counts too, unless another task has the lock.
-- KEYS, ARGV[1] as in shared/begin.lua; then identity, task id, fencing token, remember (ms),
-- and 1 if its result could not be stored.
-- Returns 1: the lock has the success, 0: another task has the lock, or it was taken away while the task ran.
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
-- Settle this now, because a later report of the worker does not count if the lease was lost before.
to_settle('concluded', identity, task, lost)
serve()
return 1
