-- Facts: what follows when a run ends. There are three: whether its body began; who has its message now;
-- what came of it.
--
-- message    nobody   the run was the last of it
--            broker   it will be delivered again, and runs again if nothing came of this run
--            place    the store has it: back to its own place in line
--            tail     the same, behind all others (rejected, to be delivered again)
--            head     the same, before all others (the outside said that it is asked too often)
--            lost     nobody can tell, since the holder is gone: its own place if the store has it
-- result     success, failure, retry (another delivery, with one more attempt, follows), nothing
--
-- What follows (core/facts.py has the same table; a test holds them together):
--   permit     is free, always
--   rate       the start is free again if the body did not begin
--   lock       success, failure: ends as the task's options say; retry, or the message is somewhere: waits
--              for that delivery; else free, also one that a run took which did not begin
--   ran        what the broker delivers again though something came of it is dropped then
--   second     another delivery of the same task: dropped after success, failure or retry, and if the task
--              was only told something, unless its attempt is later; else it goes on
local BEFORE_ALL = 100000000000000

-- Whether the store still has a message to put back in line.
local function comes_back(task, record, message)
  local kept = message == 'place' or message == 'tail' or message == 'head' or message == 'lost'
  return kept and not record.outside and not record.over and redis.call('HEXISTS', MESSAGES, task) == 1
end

local function line_up_again(task, record, began, message)
  if began then record.deadline = nil end -- it had started in time
  if message == 'tail' then
    record.ticket, record.place = next_ticket(), nil
    if record.turn then record.place = take_turn(record.turn, record.ticket) end
  elseif message == 'head' then
    record.ticket, record.place = next_ticket() - BEFORE_ALL, nil
  end
  if began and message ~= 'head' then record.deliveries = (record.deliveries or 0) + 1 end
  enqueue(task, record)
end

-- A run is over, and its message with it; whether another delivery of the task goes on. One that was only
-- told something is over too: no other message of it may run.
local function run_over(task, record, began, message, result)
  forget_task(task)
  local only_told = not began and message == 'nobody'
  local is_over = (began or message == 'broker') and result ~= 'nothing'
  if only_told or is_over then finish(task, record, message == 'broker') end
  return settle_second(task, record, only_told and 'failure' or result)
end

-- A run has ended. Returns its record, or nil if it did not hold (any more).
local function ended(task, nonce, began, message, result)
  local record = load_record(task)
  if not record or record.nonce ~= nonce then return nil end
  local needs = needs_of(takes(record))
  redis.call('ZREM', LEASES, task)
  if not began then
    for _, need in ipairs(needs) do
      if rule_of(need.bucket).rates then unbook_start(need.bucket, nonce) end
    end
  end
  give(needs)
  if record.over then began, result = true, end_over(task, record, message, result) end
  if comes_back(task, record, message) then
    if record.lock then lock_ended(task, record, nonce, 'waits') end
    -- Whoever it was to run after may have ended while it was lent.
    if record.lent and record.lock and record.lock.verdict == 'next' then judge_record(task, record) end
    line_up_again(task, record, began, message)
  else
    local goes_on = run_over(task, record, began, message, result)
    if record.lock then
      -- What self.replace() sent has the same task id, and may have a lock of its own.
      goes_on = goes_on and goes_on.lock and goes_on.lock.identity == record.lock.identity
      local outcome = lock_outcome(message, result, goes_on)
      -- It took the lock itself, for nothing. Its call may have been late, and whoever got the message since
      -- may have said that the task never runs: if there is a next delivery it takes the lock again.
      local vain = not began and not goes_on and record.lock.fresh
      lock_ended(task, record, nonce, vain and outcome == 'waits' and 'nothing' or outcome)
    end
  end
  return record
end

local function lock_outcome(message, result, goes_on)
  if goes_on or result == 'retry' then return 'waits' end
  if result == 'success' or result == 'failure' then return result end
  if message == 'broker' then return 'waits' end
  return message == 'lost' and 'lost' or 'nothing'
end

-- A run has ended, and its permit passes to a task that starts in its place in the same worker; nobody
-- waited for it. One whose lease was lost has none to pass on: the other is put back by its renewal if
-- there is room. Returns whether it held.
local function passed_on(row)
  local task, to = row.task, row.to
  local record = load_record(task)
  if not record or record.nonce ~= row.nonce then return false end
  redis.call('ZREM', LEASES, task)
  local result = record.over and end_over(task, record, 'nobody', row.result) or row.result
  run_over(task, record, true, 'nobody', result)
  local other = mend_record(to.task)
  if other and other.nonce then
    give(needs_of(record.needs))
    return true
  end
  if other then step_back(to.task, other) end
  redis.call('ZADD', LEASES, NOW + LEASE_MS, to.task)
  -- Its worker has not heard yet that there is a rate now.
  for _, need in ipairs(needs_of(record.needs)) do
    local rule = rule_of(need.bucket)
    if rule.newly_paced and rule.rates then book_start(need.bucket, rule, need.cost, false, to.nonce) end
  end
  save_record(to.task, {
    v = VERSION, needs = record.needs, queue = to.queue, ticket = 0, nonce = to.nonce, since = NOW,
    attempt = to.attempt > 0 and to.attempt or nil, code = to.code,
  })
  return true
end

-- Such a run ends: what may still come of its task is noted. Returns what came of the task.
local function end_over(task, record, message, result)
  if message == 'lost' then
    -- Its worker may come back and say that the task has to run again, or the broker may deliver it.
    record.out = record.out or {}
    record.out[record.nonce] = 0
  elseif result == 'retry' then
    finish(task, { attempt = (record.attempt or 0) + 1 }, true)
  end
  return 'success'
end
