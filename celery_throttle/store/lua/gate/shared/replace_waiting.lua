-- Replace waiting: the newest task takes the place of one that waits (parked or on its way) or is to run
-- next.
--
-- A claim may be that of a message that is never sent. So until the task has come to a worker (coming in the
-- lock), no other task ends because of its claim: other tasks wait, parked before or arriving now, and one of
-- them has the lock if the claim ends.

-- Return whether the task that has the lock, or is to run next, was published after this task.
local function is_older(plan, lock, task)
  local newest = lock.next and lock.next ~= task and lock.next_claim or lock.claim
  return tonumber(plan.claim) < tonumber(newest)
end

-- Return this verdict on a task that must not run because of the one that has the lock, or is to run next,
-- once that one has come. Until then the task waits.
local function once_come(lock, verdict)
  if not lock.coming then return verdict end
  return lock.next and 'next' or 'follow'
end

-- The task of a claim has come, and the caller saves its lock: judge again the tasks that waited for that. A
-- task that returns the first has no such tasks, but those that end with its outcome.
local function came(plan, lock)
  lock.coming = nil
  if plan.on_conflict ~= 'return_existing' then wake_followers(plan.identity, lock.task) end
end

local function replace_lock(identity, old, new, till)
  save_lock(identity, new, till)
  to_settle('make way', identity, old.task)
  wake_followers(identity, old.task)
  if old.next then wake_next(identity) end
end

-- till: until when the task is next at least, if it does not come; nil if it has come.
local function run_next(lock, task, plan, till)
  local is_next = lock.next == task
  local wakes = lock.next and not till and (not is_next or lock.coming)
  local coming = till and not (is_next and not lock.coming)
  local before = is_next and lock.next_till
  lock.next_till = till and math.max(till, before or 0) or before or nil
  lock.next, lock.next_claim, lock.coming = task, plan.claim, coming and 1 or nil
  write_lock(plan.identity, lock)
  if wakes then wake_next(plan.identity) end
  return 'next'
end
