-- Replace waiting: the newest task takes the place of one that waits (parked or on its way) or is to run
-- next.
--
-- A parked task makes room only when the newest has come, because the newest may fail to be published. Until
-- then (coming in the lock) the parked task waits, and keeps its place in case the newest never comes.

-- Return whether the task that has the lock, or is to run next, was published after this task.
local function is_older(plan, lock, task)
  local newest = lock.next and lock.next ~= task and lock.next_claim or lock.claim
  return tonumber(plan.claim) < tonumber(newest)
end

-- Return the verdict of a task that is older than the newest.
local function give_way(lock, was_parked)
  if not lock.coming or not was_parked then return 'replaced' end
  return lock.next and 'next' or 'follow'
end

-- The newest has come: judge again the tasks that waited for that.
local function newest_came(identity, lock)
  lock.coming = nil
  write_lock(identity, lock)
  wake_followers(identity, lock.task)
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
