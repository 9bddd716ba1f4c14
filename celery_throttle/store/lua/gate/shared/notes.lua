-- Notes: what a worker, or an operator, says of tasks that do not run here (now): they were revoked or
-- dropped, or their message is somewhere else.

local function withdraw(task)
  local record = load_record(task)
  if record and not record.nonce then
    leave_line(task, record)
    drop_bar(task, record)
    if record.lock then
      will_not_ask(record.lock.identity, record.lock.asked or record.lock.first)
      give_up_lock(record.lock.identity, task)
    end
    state.withdrawn[#state.withdrawn + 1] = { task, redis.call('HGET', MESSAGES, task) or '' }
    forget_task(task)
  end
  local second = redis.call('HGET', SECOND_MESSAGES, task)
  if second then
    state.withdrawn[#state.withdrawn + 1] = { task, second }
    forget_second(task)
  end
end

-- A parked task is not to run: all that is left is that a worker says so. Returns whether it was to run.
local function drop_parked(task, reason)
  local record = load_record(task)
  if not record or record.nonce or record.outside or record.expired then return false end
  local verdict = record.lock and record.lock.verdict or 'run'
  if verdict ~= 'run' and verdict ~= 'follow' and verdict ~= 'next' then return false end
  leave_line(task, record)
  drop_bar(task, record)
  if record.lock then give_up_lock(record.lock.identity, task) end
  forget_second(task)
  note_ran(task, record, false)
  enqueue(task, {
    v = VERSION, needs = '', queue = record.queue, ticket = record.ticket, attempt = record.attempt,
    deliveries = record.deliveries, expired = true, dropped = reason,
  })
  return true
end

-- A parked task is held by whoever publishes its message again. Returns its queue, nil if it is not to run.
local function lend(task, nonce)
  local record = load_record(task)
  if not record or record.nonce or record.outside or record.expired then return nil end
  local verdict = record.lock and record.lock.verdict or 'run'
  if verdict ~= 'run' and verdict ~= 'next' then return nil end
  leave_line(task, record)
  drop_bar(task, record)
  record.nonce, record.since, record.lent = nonce, NOW, 1
  redis.call('ZADD', LEASES, NOW + LEASE_MS, task)
  save_record(task, record)
  return record.queue
end

local function forget_message(task, nonce)
  local record = load_record(task)
  if record and record.nonce == nonce then redis.call('HDEL', MESSAGES, task) end
end

local function note_unacked(task)
  local record = load_record(task)
  -- One that has ended by now was noted then, since this call had not come.
  if record then
    record.unacked = 1
    save_record(task, record)
  end
end

local function hear_notes(said, before)
  for _, each in ipairs(said.began or {}) do forget_message(unpack(each)) end
  local unacked = {}
  for _, task in ipairs(said.unacked or {}) do
    unacked[task] = true
    note_unacked(task)
  end
  confirm_parked(before, unacked)
  for _, task in ipairs(said.revoked or {}) do withdraw(task) end
  for _, each in ipairs(said.never or {}) do
    local identity, task, first = unpack(each)
    give_up_lock(identity, task)
    will_not_ask(identity, first)
  end
end
