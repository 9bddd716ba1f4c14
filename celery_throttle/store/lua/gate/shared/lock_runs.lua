-- Identity locks of running tasks: from the start, by renewals, to the end.

-- The task starts: its lock lasts as long as its lease.
local function lock_started(task, record)
  local plan = record.lock
  if plan.verdict ~= 'run' then return end
  local lock = load_lock(plan.identity) or new_lock(task, plan.claim)
  -- The task has reported its success, so the lock stays done.
  if lock.state == 'done' and lock.task == task then return end
  if lock.task ~= task then
    -- A later attempt, which needs no lock.
    local without = plan.lock_until == 'started' and record.attempt
    if without and plan.fence == '0' then plan.fence = next_stamp() end
    return
  end
  -- A run that is put back keeps its token.
  local back = lock.state == 'running' and lock.nonce == record.nonce and plan.fence ~= '0'
  if not back then plan.fence, lock.last = next_stamp(), nil end
  lock.nonce, lock.fence, lock.since = record.nonce, plan.fence, NOW
  lock.state = plan.lock_until == 'started' and 'started' or 'running'
  -- The expiry counts from the claim, the only time that no later event changes.
  lock.floor = plan.lock_until == 'expires' and math.max(lock.floor, lock_till(plan.identity)) or 0
  save_lock(plan.identity, lock, NOW + RUNNING_LEASES * LEASE_MS)
end

-- The lock is free for others, but the tasks that waited for this one still wait.
local function renew_started(task, identity)
  local lock = load_lock(identity)
  if lock and lock.task == task and lock.state == 'started' then
    save_lock(identity, lock, NOW + RUNNING_LEASES * LEASE_MS)
  end
  return true
end

-- Keep the lock of a running task, or restore it after a loss of data; false if another task has the lock.
local function renew_lock(task, record)
  local plan = record.lock
  if plan.verdict ~= 'run' or plan.unlocked then return true end
  if plan.lock_until == 'started' then return renew_started(task, plan.identity) end
  local lock = load_lock(plan.identity)
  if lock and lock.task == task and lock.state == 'done' then
    -- Another delivery has succeeded: its outcome lasts at least as long as this run.
    lock.nonce = record.nonce
    save_lock(plan.identity, lock, math.max(lock_till(plan.identity), NOW + RUNNING_LEASES * LEASE_MS))
    return true
  end
  if lock and lock.state ~= 'queued' and (lock.task ~= task or lock.state ~= 'running') then return false end
  -- Take a lock that has just ended, too, because tasks still wait for it.
  lock = lock or kept_lock(plan.identity)
  local other = lock and lock.task ~= task and lock.task
  if not lock or other then
    lock, plan.fresh = new_lock(task, plan.claim), 1
  end
  -- With the token of the run, even if its task is back in line.
  lock.state, lock.fence, lock.nonce = 'running', plan.fence or '0', record.nonce
  save_lock(plan.identity, lock, NOW + RUNNING_LEASES * LEASE_MS)
  if other then
    -- The other task has not begun, or its time is over: its waiting tasks wait for this task now.
    wake_followers(plan.identity, other)
    wake_next(plan.identity)
  end
  return true
end

local function lasts(plan, lock, outcome)
  if plan.lock_until == 'expires' then return lock.floor end
  return outcome == 'success' and NOW + plan.remember_ms or NOW
end

-- A run has ended. outcome: success, failure, waits (for its next delivery), lost, nothing.
local function lock_ended(task, record, nonce, outcome)
  local plan = record.lock
  outcome_given(plan, outcome)
  if plan.verdict ~= 'run' then return end
  local identity = plan.identity
  -- A lock that has just ended with the lease may still be the lock of this run, by its nonce.
  local lock = kept_lock(identity)
  local ours = lock and lock.task == task and lock.nonce == nonce
  -- The task had succeeded, but its worker was lost before the report.
  if ours and lock.state == 'done' then outcome = 'success' end
  if ours and lock.last and outcome == 'waits' then outcome = 'nothing' end
  local has_ended = outcome == 'success' or outcome == 'failure'
  if has_ended then to_settle('concluded', identity, task, ours and lock.lost) end
  if not ours then
    -- The lock was released at start and re-taken since: wake the followers of this task here.
    if not has_ended and not (lock and lock.task == task) then wake_followers(identity, task) end
    return
  end
  lock.nonce = nil
  if has_ended then keep_awaited(task, plan, lock) end
  if has_ended and not lock.next and lasts(plan, lock, outcome) > NOW then
    lock.state = outcome == 'success' and 'done' or 'failed'
    save_lock(identity, lock, lasts(plan, lock, outcome))
  elseif outcome == 'waits' then
    lock.state = 'queued'
    local lasting = plan.lock_until == 'expires' and lock.floor > NOW
    save_lock(identity, lock, lasting and lock.floor or NOW + plan.ttl_ms)
  elseif lock.floor > NOW and (outcome == 'lost' or plan.lock_until == 'expires') then
    lock.state = 'queued'
    save_lock(identity, lock, lock.floor)
  else
    pass_lock_on(identity, lock, plan.ttl_ms)
  end
end

-- A task runs that will have no other delivery, for which its lock would last: end the lock with the run.
local function keep_no_longer(identity, lock)
  local record = load_record(lock.task)
  if record and record.lock and record.lock.lock_until ~= 'expires' then lock.floor = 0 end
  lock.last = 1
  write_lock(identity, lock)
end

-- Free the lock of a task that will never run (revoked, expired, not published).
local function give_up_lock(identity, task)
  local lock = load_lock(identity)
  if not lock then return 0 end
  if lock.next == task then
    forget_next(identity, lock)
    write_lock(identity, lock)
    return 1
  end
  local runs = lock.state == 'running' or lock.state == 'started'
  if lock.task == task and runs then keep_no_longer(identity, lock) end
  if lock.task ~= task or lock.state ~= 'queued' then return 0 end
  pass_lock_on(identity, lock, LEASE_MS)
  return 1
end

-- A duplicate will not ask for the outcome of its first task.
local function will_not_ask(identity, first)
  if first == '' then return end
  if is_awaited(first) then return less_awaited(first, 1) end
  local lock = load_lock(identity)
  if lock and lock.task == first and lock.awaited > 0 then
    lock.awaited = lock.awaited - 1
    write_lock(identity, lock)
  end
end

-- A duplicate that concludes has used the outcome of its first task.
local function outcome_given(plan, outcome)
  if plan.verdict ~= 'conclude' or plan.asked ~= plan.first then return end
  if outcome == 'waits' or outcome == 'lost' then return end
  will_not_ask(plan.identity, plan.first)
end
