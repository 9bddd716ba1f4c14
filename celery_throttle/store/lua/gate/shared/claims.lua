-- Claims: which task gets an identity lock, and the verdict on a task that does not.
--
-- The plan of a task for its lock (`lock` in its record):
--   identity
--   lock_until    'finished', 'started' or 'expires'
--   remember_ms
--   ttl_ms        while queued
--   on_conflict
--   claim         '0' if the task was published without a claim
--   first         the task that had the lock then, '' if none; from the verdict on, the task to wait for
-- and from here on:
--   verdict       see below
--   fence         its fencing token
--   asked         first, as it was when the task was published
--   fresh         no task had the lock when this one arrived or was put back, not even this one
--   unlocked      the lock was taken away while the task ran
--   lost          the first task has succeeded, and its result could not be stored
-- Verdicts:
--   run           has the lock
--   follow        waits for the outcome of the task that has the lock (first)
--   next          runs after that task
--   conclude      the outcome of first is there
--   duplicate, skip, replaced, done  must not run: a worker reports that

local function change_verdict(task, record, verdict, first, lost)
  leave_line(task, record)
  record.lock.verdict, record.lock.first, record.lock.lost = verdict, first, lost
  enqueue(task, record)
end

local function claim_free(task, plan)
  state.adds_ends = true
  -- Judge again the tasks that waited for a lock that has lapsed.
  if kept_lock(plan.identity) and lock_till(plan.identity) <= NOW then lock_lapsed(plan.identity) end
  if plan.claim == '0' then plan.claim = next_stamp() end
  plan.fresh = 1
  save_lock(plan.identity, new_lock(task, plan.claim), NOW + plan.ttl_ms)
  return 'run', ''
end

-- Return until when the lock of a task lasts that has come to a worker. Its publisher may not have confirmed
-- the claim. An expiry counts from the claim, which is a time (us) if this store has given it.
local function queued_till(plan, lock)
  local since = plan.lock_until == 'expires' and math.min(math.floor(lock.claim / 1000), NOW) or NOW
  return math.max(lock_till(plan.identity), since + plan.ttl_ms)
end

local function claim_again(task, plan, lock)
  if lock.coming and not lock.next then came(plan, lock) end
  if lock.state == 'done' then return 'done', task end
  if lock.state ~= 'running' then
    lock.state = 'queued'
    save_lock(plan.identity, lock, queued_till(plan, lock))
  end
  return 'run', ''
end

-- The message of a claim was sent: let the lock last. Returns whether the claim still stands.
local function keep_claim(identity, task, claim, till, is_retry)
  local lock = load_lock(identity)
  if not lock then return false end
  if lock.next == task and lock.next_claim == claim then
    lock.next_till = math.max(lock.next_till or 0, till)
    write_lock(identity, lock)
    return true
  end
  if lock.task ~= task or lock.claim ~= claim then return false end
  if lock.state == 'queued' then
    redis.call('ZADD', ENDS, 'GT', till, 'locks:' .. identity)
    return true
  end
  -- The task runs, and has published its retry; claim.lua has raised the floor.
  if not is_retry or lock.state == 'done' or lock.floor <= NOW then return false end
  lock.floor = math.max(lock.floor, till)
  save_lock(identity, lock, lock_till(identity))
  return true
end

local function conclude(first, identity)
  local lock = kept_lock(identity)
  return 'conclude', first, lock and lock.task == first and lock.lost or nil
end

-- Take the lock for this task, or decide what the task does instead. Returns its verdict, the task that it is
-- a duplicate of, and lost.
local function judge(task, plan, attempt)
  -- The task was published as a duplicate, and the first task has ended since.
  local waited = plan.first ~= '' and plan.verdict ~= 'next'
  if waited and is_awaited(plan.first) then
    return conclude(plan.first, plan.identity)
  end
  local lock = load_lock(plan.identity)
  if not lock or lock.state == 'started' and lock.task ~= task then return claim_free(task, plan) end
  if lock.task == task then return claim_again(task, plan, lock) end
  -- The task had its lock until it began; a later attempt needs none.
  if plan.lock_until == 'started' and attempt then return 'run', '' end
  local conflict = plan.on_conflict
  if conflict == 'raise' then return once_come(lock, 'duplicate'), lock.task end
  if conflict == 'skip' then return once_come(lock, 'skip'), lock.task end
  if lock.state == 'done' or lock.state == 'failed' then return conclude(lock.task, plan.identity) end
  if conflict ~= 'replace' and conflict ~= 'keep_last' then return 'follow', lock.task end
  if plan.claim == '0' then plan.claim = next_stamp() end
  if is_older(plan, lock, task) then return once_come(lock, 'replaced'), lock.task end
  if lock.state == 'running' then
    if conflict == 'keep_last' then return run_next(lock, task, plan), lock.task end
    return 'follow', lock.task
  end
  replace_lock(plan.identity, lock, new_lock(task, plan.claim), NOW + plan.ttl_ms)
  return 'run', ''
end

local function judge_record(task, record)
  local plan = record.lock
  plan.asked, plan.fresh = plan.asked or plan.first, nil
  plan.verdict, plan.first, plan.lost = judge(task, plan, record.attempt)
  plan.fence, plan.unlocked = '0', nil
  return plan.verdict == 'run'
end
