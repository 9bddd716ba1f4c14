-- Notes: what a worker, or an operator, says of tasks that do not run here (now): they were revoked or
-- dropped, or their message is somewhere else.

local function withdraw(task)
  local record = load_record(task)
  if record and not record.nonce then
    if record.unacked then note_ran(task, record, false) end
    leave_line(task, record)
    -- That it asks for no outcome is said by the worker that says that it was revoked (`never`).
    if record.lock then give_up_lock(record.lock.identity, task) end
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
  if record.lock then give_up_lock(record.lock.identity, task) end
  drop_second(task)
  note_ran(task, record, false)
  enqueue(task, {
    v = VERSION, needs = '', queue = record.queue, ticket = record.ticket, attempt = record.attempt,
    deliveries = record.deliveries, expired = true, dropped = reason, dropped_at = NOW,
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
  record.nonce, record.since, record.lent = nonce, NOW, 1
  redis.call('ZADD', LEASES, NOW + LEASE_MS, task)
  save_record(task, record)
  return record.queue
end

local function forget_message(task, nonce)
  local record = load_record(task)
  if record and record.nonce == nonce then redis.call('HDEL', MESSAGES, task) end
end

-- The broker has the message of this delivery, too: until its worker says otherwise, or calls again.
local function await_acknowledgement(record, delivery)
  if delivery.unacked then
    record.unacked = record.unacked or {}
    record.unacked[delivery.nonce] = 1
  else
    record.told = record.told or {}
    record.told[state.worker] = state.call
  end
end

-- The same of a delivery whose message is not needed: that of one that waits beside a run, of the other, or
-- of an attempt that a later one has taken the place of. One that has ended by now was noted then, since this
-- call had not come.
local function note_delivery(task, delivery)
  local record, second, attempt = load_record(task), load_second(task), delivery.attempt
  if second and (second.attempt or 0) == attempt then
    await_acknowledgement(second, delivery)
    write_second(task, second)
  elseif record and (record.attempt or 0) == attempt then
    await_acknowledgement(record, delivery)
    save_record(task, record)
  elseif math.max(record and record.attempt or 0, second and second.attempt or 0) > attempt
    or has_run(task, attempt) then
    local over = { attempt = attempt }
    await_acknowledgement(over, delivery)
    note_ran(task, over, false)
  end
end

-- Two parked messages of one attempt become one.
local function await_both(record, other)
  for _, kind in ipairs({ 'told', 'unacked' }) do
    for name, call in pairs(other[kind] or {}) do
      record[kind] = record[kind] or {}
      record[kind][name] = math.max(record[kind][name] or 0, call)
    end
  end
end

-- Whether its message was at the broker; it is not any more.
local function was_unacked(record, nonce)
  if not record or not record.unacked or not record.unacked[nonce] then return false end
  record.unacked[nonce] = nil
  if not next(record.unacked) then record.unacked = nil end
  return true
end

local function note_acked(task, attempt, nonce)
  local record, second = load_record(task), load_second(task)
  if was_unacked(record, nonce) then save_record(task, record) end
  if was_unacked(second, nonce) then write_second(task, second) end
  will_not_come(attempt .. ' ' .. task, nonce)
end

local function hear_notes(said, before)
  for _, each in ipairs(said.unread or {}) do hear_unread(unpack(each)) end
  for _, each in ipairs(said.began or {}) do forget_message(unpack(each)) end
  for _, each in ipairs(said.unacked or {}) do
    local task, attempt, nonce = unpack(each)
    note_delivery(task, { attempt = attempt, nonce = nonce, unacked = true })
  end
  confirm_parked(state.worker, before)
  state.call_before = state.call
  for _, each in ipairs(said.acked or {}) do note_acked(unpack(each)) end
  for _, task in ipairs(said.revoked or {}) do withdraw(task) end
  for _, each in ipairs(said.never or {}) do
    local identity, task, first = unpack(each)
    give_up_lock(identity, task)
    will_not_ask(identity, first)
  end
end
