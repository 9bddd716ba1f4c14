-- Claims: who gets an identity lock, and what becomes of a task that does not.
--
-- What a task does with its lock (in its record: lock): identity; how: lock_until ('finished',
-- 'started', 'expires'), remember_ms, ttl_ms (while queued), on_conflict; claim: '0' if nothing was
-- claimed when it was published; first: the task that had it then, '' if none; and from here on verdict,
-- fence (its token), unlocked: the lock was taken away while it ran; asked: the first it was a duplicate
-- of when it was published; fresh: nobody had it, not even this task since it was published; lost: the
-- first has succeeded, and its result could not be kept. Verdicts:
--   run        has the lock          follow   waits for the outcome of whoever has it (first)
--   next       runs after it         conclude the outcome of first is there
--   duplicate, skip, replaced, done  must not run: to be said by a worker

local function change_verdict(task, record, verdict, first, lost)
  leave_line(task, record)
  record.lock.verdict, record.lock.first, record.lock.lost = verdict, first, lost
  enqueue(task, record)
end

local function claim_free(task, plan)
  state.adds_ends = true
  -- Tasks that waited for one that has lapsed are judged again.
  if kept_lock(plan.identity) and lock_till(plan.identity) <= NOW then lock_lapsed(plan.identity) end
  if plan.claim == '0' then plan.claim = next_stamp() end
  plan.fresh = 1
  save_lock(plan.identity, new_lock(task, plan.claim), NOW + plan.ttl_ms)
  return 'run', ''
end

local function claim_again(task, plan, lock)
  if lock.coming and not lock.next then newest_came(plan.identity, lock) end
  if lock.state == 'done' then return 'done', task end
  if lock.state == 'failed' or lock.state == 'started' then
    lock.state = 'queued'
    local till = plan.lock_until == 'expires' and lock_till(plan.identity) or NOW + plan.ttl_ms
    save_lock(plan.identity, lock, till)
  elseif lock.state == 'queued' and plan.lock_until ~= 'expires' then
    save_lock(plan.identity, lock, math.max(lock_till(plan.identity), NOW + plan.ttl_ms))
  end
  return 'run', ''
end

local function conclude(first, identity)
  local lock = kept_lock(identity)
  return 'conclude', first, lock and lock.task == first and lock.lost or nil
end

-- Take the lock for this task, or say what becomes of it instead: its verdict, whom it is a duplicate of,
-- lost.
local function judge(task, plan, attempt, was_parked)
  -- It was a duplicate when it was published, and the first has ended since.
  local waited = plan.first ~= '' and plan.verdict ~= 'next'
  if waited and is_awaited(plan.first) then
    return conclude(plan.first, plan.identity)
  end
  local lock = load_lock(plan.identity)
  if not lock or lock.state == 'started' and lock.task ~= task then return claim_free(task, plan) end
  if lock.task == task then return claim_again(task, plan, lock) end
  -- It had its lock until it began; a later attempt needs none.
  if plan.lock_until == 'started' and attempt then return 'run', '' end
  local conflict = plan.on_conflict
  if conflict == 'raise' then return 'duplicate', lock.task end
  if conflict == 'skip' then return 'skip', lock.task end
  if lock.state == 'done' or lock.state == 'failed' then return conclude(lock.task, plan.identity) end
  if conflict ~= 'replace' and conflict ~= 'keep_last' then return 'follow', lock.task end
  if plan.claim == '0' then plan.claim = next_stamp() end
  if is_older(plan, lock, task) then return give_way(lock, was_parked), lock.task end
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
  plan.verdict, plan.first, plan.lost = judge(task, plan, record.attempt, record.ticket > 0)
  plan.fence, plan.unlocked = '0', nil
  return plan.verdict == 'run'
end
