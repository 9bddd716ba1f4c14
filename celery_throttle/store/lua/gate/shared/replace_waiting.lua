-- Replace waiting: the newest takes the place of a task that waits, parked or on its way, or is to run next.
--
-- One that is parked makes room only when the newest has come: that may fail to be published. Until then
-- (coming in the lock) it waits for that, in its place if that never comes.

-- Whether whoever has the lock, or is to run next, was published after this task.
local function is_older(plan, lock, task)
  local newest = lock.next and lock.next ~= task and lock.next_claim or lock.claim
  return tonumber(plan.claim) < tonumber(newest)
end

-- The verdict of one that is older than the newest.
local function give_way(lock, was_parked)
  if not lock.coming or not was_parked then return 'replaced' end
  return lock.next and 'next' or 'follow'
end

-- The newest is here: those that waited for that are told.
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

-- till: until when the lock is to last for it at least, nil if that is not known.
local function run_next(lock, task, plan, coming, till)
  local wakes = lock.next and not coming and (lock.next ~= task or lock.coming)
  lock.next_till = till or lock.next == task and lock.next_till or nil
  lock.next, lock.next_claim, lock.coming = task, plan.claim, coming
  write_lock(plan.identity, lock)
  if wakes then wake_next(plan.identity) end
  return 'next'
end
