-- Next tasks: the task that has the lock after the one that has it now (`keep_last`). Until the next task has
-- come to a worker (coming), it is next for as long as its claim lasts (next_till).

-- No task is next any more, not even one that waits for that.
local function forget_next(identity, lock)
  lock.next, lock.next_claim, lock.next_till, lock.coming = nil, nil, nil, nil
  wake_next(identity) -- another delivery of the task, or the task before it, may still wait
end

-- Forget a next task that has not come to a worker in time: it may never have been published.
local function forget_late_next(identity, lock)
  if lock.next and lock.coming and (lock.next_till or NOW + 1) <= NOW then forget_next(identity, lock) end
end
