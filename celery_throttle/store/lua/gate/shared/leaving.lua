-- Leaving: parked tasks that will not run, or whose message is somewhere else.

local function withdraw(task)
  local record = mend_record(task)
  if record and not record.nonce then
    if is_unacked(record) then finish(task, record, false) end
    leave_line(task, record)
    -- That it asks for no outcome is said by the worker that says that it was revoked (`never`).
    if record.lock then give_up_lock(record.lock.identity, task) end
    state.withdrawn[#state.withdrawn + 1] = { task, redis.call('HGET', MESSAGES, task) or '' }
    forget_task(task)
  end
  if load_second(task) then
    state.withdrawn[#state.withdrawn + 1] = { task, second_message(task) }
    forget_second(task)
  end
end

-- A parked task is not to run: all that is left is that a worker says so. Returns whether it was to run.
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

-- A parked task is held by whoever publishes its message again. Returns its queue, nil if it is not to run.
local function lend(task, nonce)
  local record = mend_record(task)
  if not record or record.nonce or record.outside or record.expired then return nil end
  local verdict = record.lock and record.lock.verdict or 'run'
  if verdict ~= 'run' and verdict ~= 'next' then return nil end
  leave_line(task, record)
  record.nonce, record.since, record.lent = nonce, NOW, 1
  redis.call('ZADD', LEASES, NOW + LEASE_MS, task)
  save_record(task, record)
  return record.queue
end

local function forget_message(task, nonce)
  local record = load_record(task)
  if record and record.nonce == nonce then redis.call('HDEL', MESSAGES, task) end
end

-- A task that may not wait any longer: all that is left is to say so, or nothing for a holder outside of
-- tasks.
local function expire_parked(task, record)
  leave_line(task, record)
  if record.outside then
    return forget_task(task)
  end
  if record.lock then give_up_lock(record.lock.identity, task) end
  record.expired, record.deadline, record.lock = true, nil, nil
  enqueue(task, record)
end
