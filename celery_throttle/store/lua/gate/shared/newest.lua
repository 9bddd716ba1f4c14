-- The newest: it takes the place of whoever waits, parked or on its way, and of whoever was to run next.
--
-- One that is parked makes room only when the newest has come: that may fail to be published. Until then
-- the lock says whom it replaces; none of them starts meanwhile, since each is judged before.

-- Whether whoever has the lock, or is to run next, was published after this task.
local function is_older(plan, lock, task)
  local newest = lock.next and lock.next ~= task and lock.next_claim or lock.claim
  return tonumber(plan.claim) < tonumber(newest)
end

-- Somebody newer has its place: it is told at once if it is parked, else when it arrives.
local function divert_replaced(task, newest)
  local record = load_record(task)
  if not record or record.nonce or not record.lock then return end
  change_verdict(task, record, 'replaced', newest)
end

local function will_replace(lock, other)
  local record = other and load_record(other)
  if not record or record.nonce then return end
  lock.replaces = lock.replaces or {}
  table.insert(lock.replaces, other)
end

-- Somebody newer was published, and may run by now; the verdict of this one. If it was parked before and
-- the newest has not come it waits for that, though its turn has come.
local function give_way(lock, task)
  for _, other in ipairs(lock.replaces or {}) do
    if other == task then return lock.next and 'next' or 'follow' end
  end
  return 'replaced'
end

local function divert_all(lock, task)
  for _, other in ipairs(lock.replaces or {}) do
    if other ~= task then divert_replaced(other, task) end
  end
  lock.replaces = nil
end

local function replace_lock(identity, old, new, till, has_come)
  new.replaces = old.replaces
  will_replace(new, old.task)
  if old.next then will_replace(new, old.next) end
  if has_come then divert_all(new, new.task) end
  save_lock(identity, new, till)
  wake_followers(identity, old.task)
end

local function run_next(lock, task, plan, has_come)
  if lock.next and lock.next ~= task then will_replace(lock, lock.next) end
  if has_come then divert_all(lock, task) end
  lock.next, lock.next_claim = task, plan.claim
  write_lock(plan.identity, lock)
  return 'next'
end

-- The newest, which had the lock, will never come: those that it was to replace go on.
local function replace_none(identity, lock)
  drop_lock(identity)
  for _, other in ipairs(lock.replaces) do
    local record = load_record(other)
    if record and not record.nonce and record.lock then judge_again(other, record) end
  end
  wake_followers(identity, lock.task)
end
