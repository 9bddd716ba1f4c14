-- Leaving: parked tasks that will not run, or whose message has left the store.

local function withdraw(task)
  local record = mend_record(task)
  if record and not record.nonce then
    if is_unacked(record) then finish(task, record, false) end
    leave_line(task, record)
    -- The worker that reports the revocation (`never`) also reports that this task asks for no outcome.
    if record.lock then give_up_lock(record.lock.identity, task) end
    state.withdrawn[#state.withdrawn + 1] = { task, redis.call('HGET', MESSAGES, task) or '' }
    forget_task(task)
  end
  if load_second(task) then
    state.withdrawn[#state.withdrawn + 1] = { task, second_message(task) }
    forget_second(task)
  end
end

-- Drop a parked task: only a record remains, with which a worker reports it as revoked. Returns whether the
-- task was to run.
local function drop_parked(task, reason)
  local record = mend_record(task)
  if not record or record.nonce or record.outside or record.expired then return false end
  local verdict = record.lock and record.lock.verdict or 'run'
  if verdict ~= 'run' and verdict ~= 'follow' and verdict ~= 'next' then return false end
  leave_line(task, record)
  if record.lock then give_up_lock(record.lock.identity, task) end
  drop_second(task)
  finish(task, record, false)
  enqueue(task, {
    v = VERSION, needs = '', queue = record.queue, ticket = record.ticket, attempt = record.attempt,
    deliveries = record.deliveries, expired = true, dropped = reason, dropped_at = NOW,
  })
  return true
end

-- Lend a parked task to a caller that publishes its message again. Returns its queue, nil if the task is not
-- to run.
local function lend(task, nonce)
  local record = mend_record(task)
  if not record or record.nonce or record.outside or record.expired then return nil end
  local verdict = record.lock and record.lock.verdict or 'run'
  if verdict ~= 'run' and verdict ~= 'next' then return nil end
  leave_line(task, record)
  record.nonce, record.since, record.lent, record.again = nonce, NOW, 1, nil
  redis.call('ZADD', LEASES, NOW + LEASE_MS, task)
  save_record(task, record)
  return record.queue
end

local function forget_message(task, nonce)
  local record = load_record(task)
  if record and record.nonce == nonce then redis.call('HDEL', MESSAGES, task) end
end

-- The wait of a parked task has ended: only a record remains, with which a worker reports that. A holder
-- outside of tasks leaves nothing.
local function expire_parked(task, record)
  leave_line(task, record)
  if record.outside then
    return forget_task(task)
  end
  if record.lock then give_up_lock(record.lock.identity, task) end
  record.expired, record.again, record.lock = true, nil, nil
  enqueue(task, record)
end
