-- Facts: the consequences of the end of a run. A run ends with three facts: whether its body began, where its
-- message is now, and its result.
--
-- message    nobody   used up by this run
--            broker   the broker delivers it again, and the task runs again if this run had no result
--            place    in the store: back to its own place in line
--            tail     the same, behind all others (rejected, to be delivered again)
--            head     the same, before all others (an outside service asked to slow down)
--            lost     unknown, since the holder is gone: back to its own place if the store has it
-- result     success, failure, retry (another delivery, with one more attempt, follows), nothing
--
-- A task that has begun goes back after a pause, but for head, which has a pause of its own. After its last
-- begin (throttle_max_begins) it does not go back: it is set aside, and its lock is free.
--
-- The consequences (tests/store/facts_table.py has the same table; a test compares the two):
--   permit     always free
--   rate       the start is free again if the body did not begin
--   lock       success, failure: ends by the options of the task; retry, or the message is in the broker or
--              the store: waits for that delivery; else free, also if no publisher had claimed it
--   finished   an attempt with a result, whose message the broker delivers again: that delivery is dropped
--   second     another delivery of the same task: dropped after success, failure or retry, or if the task
--              ended without a run, unless its attempt is later; else it goes on
local BEFORE_ALL = 100000000000000

-- Return whether the store still has a message to put back in line.
local function comes_back(task, record, message)
  local kept = message == 'place' or message == 'tail' or message == 'head' or message == 'lost'
  return kept and not record.outside and not record.over and redis.call('HEXISTS', MESSAGES, task) == 1
end

local function line_up_again(task, record, began, message)
  if began and not record.expired then record.deadline = nil end -- the task started in time
  if message == 'tail' then
    record.ticket, record.place = next_ticket(), nil
    if record.turn then record.place = take_turn(record.turn, record.ticket) end
  elseif message == 'head' then
    record.ticket, record.place = next_ticket() - BEFORE_ALL, nil
  end
  if began and message ~= 'head' then begin_later(record) end
  enqueue(task, record)
end

-- End a run together with its message. Returns the second delivery of its task, if that goes on. A task that
-- ended without a run is over too: no other message of the task may run.
local function run_over(task, record, began, message, result)
  forget_task(task)
  local only_told = not began and message == 'nobody'
  local is_over = (began or message == 'broker') and result ~= 'nothing'
  if only_told or is_over then finish(task, record, message == 'broker') end
  return settle_second(task, record, only_told and 'failure' or result)
end

-- End a run. Returns its record, or nil if this delivery does not hold (any more).
local function ended(task, nonce, began, message, result)
  local record = load_record(task)
  if not record or record.nonce ~= nonce then return nil end
  local needs = needs_of(takes(record))
  -- The task has succeeded while it was lent out, so its lock is that of no run.
  local locker = not (record.lent and record.over) and nonce or nil
  redis.call('ZREM', LEASES, task)
  if not began then
    for _, need in ipairs(needs) do
      if rule_of(need.bucket).rates then unbook_start(need.bucket, nonce) end
    end
  end
  give(needs)
  if record.over then began, result = true, end_over(task, record, message, result) end
  local back = comes_back(task, record, message)
  if back and began and message ~= 'head' and has_begun_enough(record) then
    keep_begun(task, record)
    if record.lock then lock_ended(task, record, locker, 'nothing') end
    settle_second(task, {}, 'nothing')
  elseif back then
    if record.lock then lock_ended(task, record, locker, 'waits') end
    -- The task to run after may have ended while this one was lent.
    if record.lent and record.lock and record.lock.verdict == 'next' then judge_record(task, record) end
    line_up_again(task, record, began, message)
  else
    local goes_on = run_over(task, record, began, message, result)
    if record.lock then
      -- A task sent by self.replace() has the same task id, and may have another lock. A duplicate of another
      -- task needs none.
      local lock = goes_on and goes_on.lock
      goes_on = lock and lock.identity == record.lock.identity and lock.verdict == 'run'
      lock_ended(task, record, locker, lock_outcome(message, result, goes_on, record.lock.fresh))
    end
  end
  return record
end

-- The lock waits for a delivery from the broker only if a publisher has claimed it. Else that delivery may
-- never come, and claims the lock when it comes: the store may have lost it with the claim, or a worker may
-- have reported before this run that the task never runs.
local function lock_outcome(message, result, goes_on, fresh)
  if goes_on then return 'waits' end
  if result == 'success' or result == 'failure' then return result end
  local comes = result == 'retry' or message == 'broker'
  if comes and not fresh then return 'waits' end
  return (comes or message == 'lost') and 'lost' or 'nothing'
end

-- End a run whose permit passes to a task that starts in its place on the same worker, because no task waited
-- for the permit. A run whose lease was lost has no permit to pass on; a renewal puts the other task back if
-- there is room. Returns whether the run held.
local function passed_on(task, nonce, result, to)
  local record = load_record(task)
  if not record or record.nonce ~= nonce then return false end
  redis.call('ZREM', LEASES, task)
  if record.over then result = end_over(task, record, 'nobody', result) end
  run_over(task, record, true, 'nobody', result)
  local other = mend_record(to.task)
  if other and other.nonce then
    give(needs_of(record.needs))
    return true
  end
  if other then step_back(to.task, other) end
  redis.call('ZADD', LEASES, NOW + LEASE_MS, to.task)
  -- An override has added a rate that its worker has not received yet.
  for _, need in ipairs(needs_of(record.needs)) do
    local rule = rule_of(need.bucket)
    if rule.newly_paced and rule.rates then book_start(need.bucket, rule, need.cost, false, to.nonce) end
  end
  save_record(to.task, {
    v = VERSION, needs = record.needs, queue = to.queue, ticket = 0, nonce = to.nonce, since = NOW,
    attempt = to.attempt > 0 and to.attempt or nil, code = to.code, publication = to.publication,
  })
  return true
end

-- End a run of a task that has succeeded elsewhere, and store the copies that may still come. Returns the
-- result.
local function end_over(task, record, message, result)
  if message == 'lost' then
    -- Its worker may come back and report that the task must run again, or the broker may deliver the
    -- message.
    record.out = record.out or {}
    record.out[record.nonce] = 0
  elseif result == 'retry' then
    finish(task, { attempt = (record.attempt or 0) + 1, publication = record.publication }, true)
  end
  return 'success'
end
