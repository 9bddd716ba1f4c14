-- Over: a task that has succeeded in a run without a lease. No copy of the task starts any more. A parked
-- copy is dropped. A run that was started beside the first goes on, and counts as a success however it ends.

-- A lock that lasts longer than a lease (lock_until = 'expires') takes the outcome of a run that had lost its
-- lease.
local function keep_late_outcome(identity, task, result)
  local lock = load_lock(identity)
  if not lock or lock.task ~= task or lock.state ~= 'queued' or lock.floor <= NOW then return end
  lock.state = result == 'success' and 'done' or 'failed'
  save_lock(identity, lock, lock.floor)
  to_settle('concluded', identity, task)
end

-- A run has ended that is not the holder for the store any more. record: that of its task, if there is one.
-- It may be that of another publication.
local function ended_late(task, delivery, message, result, record)
  local nonce = delivery.nonce
  local identity = forget_lost_run(state.holder, nonce)
  if message ~= 'broker' then will_not_come(task, finished_as(task, delivery), nonce) end
  local is_last = result == 'success' or result == 'failure' and message == 'nobody'
  if identity and is_last and not record then keep_late_outcome(identity, task, result) end
  if result ~= 'success' or record and record.outside then return end
  if message == 'broker' then
    finish(task, { attempt = delivery.attempt, publication = delivery.publication }, true)
  end
  if not record or not may_be_copies(record, delivery) then return end
  drop_second(task)
  if record.nonce then
    record.over = 1
    save_record(task, record)
    return
  end
  leave_line(task, record)
  run_over(task, record, true, message, 'success')
  if record.lock then lock_ended(task, record, nil, 'success') end
end
