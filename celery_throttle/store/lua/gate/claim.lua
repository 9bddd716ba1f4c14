-- Claim an identity lock for a task that is about to be published. The claim lasts seconds, because the
-- publisher may end before it publishes; sent.lua, or the arrival of the task at a worker, makes it last.
-- KEYS, ARGV[1] as in shared/begin.lua; then
--   task id
--   its plan for the lock (JSON, see shared/claims.lua)
--   how long the claim lasts (ms)
--   1 if the task is published even if another task has the lock
-- Returns one text, which is read faster than an array: answer, claim, other task id, with blanks between.
-- Answers:
--   1  claimed
--   2  this task has the lock already (a retry)
--   3  claimed in place of the other task, which must not run
--   0  the other task has the lock
--   4  the same, the other task has succeeded, and its result could not be stored
redis.call('ZREM', LEASES, '')
reap_ends(4)
settle()
local task, plan, claim_ms = argument(), object(), number()
local is_awaited = argument() == '1'
local identity, conflict = plan.identity, plan.on_conflict
local replaces_others = conflict == 'replace' or conflict == 'keep_last'

-- A task that is parked has come, and has the lock now. Returns until when the lock lasts.
local function claim_for_parked(lock)
  local record = load_record(task)
  local parked = record and not record.nonce and record.lock
  if not parked or parked.identity ~= identity then return NOW + claim_ms end
  lock.coming = nil
  if parked.verdict ~= 'run' then
    parked.claim = lock.claim
    change_verdict(task, record, 'run', '')
  end
  return NOW + plan.ttl_ms
end

-- A retry that has lost its lock keeps the age of its call.
local function claim_new(lock)
  local new = new_lock(task, plan.claim ~= '0' and plan.claim or next_stamp())
  new.coming = 1
  local till = claim_for_parked(new)
  if lock and lock.state == 'queued' then
    replace_lock(identity, lock, new, till)
  else
    save_lock(identity, new, till)
  end
  if lock and lock.state == 'queued' then return 3, lock.task, new.claim end
  return 1, '', new.claim
end

local function claim_own(lock)
  if lock.state == 'done' then return 0, task, '0' end
  if plan.lock_until ~= 'expires' then lock.floor = math.max(lock.floor, NOW + claim_ms) end
  save_lock(identity, lock, lock_till(identity))
  return 2, '', lock.claim
end

local function await_outcome(lock)
  if lock.state == 'done' or lock.state == 'failed' then
    more_awaited(lock.task, 1, NOW + plan.ttl_ms)
  else
    lock.awaited = lock.awaited + 1
    write_lock(identity, lock)
  end
end

local function claim()
  end_lock_if_over(identity)
  local lock, newest = load_lock(identity), replaces_others
  if lock and lock.task == task then return claim_own(lock) end
  if lock and newest and plan.claim ~= '0' and is_older(plan, lock, task) then newest = false end
  if not lock or lock.state == 'started' or newest and lock.state == 'queued' then return claim_new(lock) end
  if newest and conflict == 'keep_last' and lock.state == 'running' then
    local other = lock.next ~= task and lock.next or ''
    if plan.claim == '0' then plan.claim = next_stamp() end
    run_next(lock, task, plan, NOW + claim_ms)
    return other == '' and 1 or 3, other, plan.claim
  end
  if is_awaited then await_outcome(lock) end
  return lock.state == 'done' and lock.lost and 4 or 0, lock.task, plan.claim
end

local answer, other, stamp = claim()
serve()
return answer .. ' ' .. stamp .. ' ' .. other
