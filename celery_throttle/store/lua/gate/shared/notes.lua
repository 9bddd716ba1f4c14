-- Notes: what a worker, or an operator, says of tasks that do not run here (now): they were revoked or
-- dropped, or their message is somewhere else.

local function withdraw(task)
  local record = load_record(task)
  if record and not record.nonce then
    if record.unacked then note_ran(task, record, false) end
    leave_line(task, record)
    drop_bar(task, record)
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

local function count_unacked(record, unacked)
  if unacked then record.unacked = (record.unacked or 0) + 1 end
end

-- The broker has this message too: of one that waits beside a run, or of the other. One that has ended by
-- now was noted then, since this call had not come.
local function note_unacked(task, attempt)
  local record, second = load_record(task), load_second(task)
  if second and (second.attempt or 0) == attempt then
    count_unacked(second, true)
    write_second(task, second)
  elseif record and (record.attempt or 0) == attempt then
    count_unacked(record, true)
    save_record(task, record)
  elseif record and (record.attempt or 0) > attempt then
    note_ran(task, { attempt = attempt }, true) -- it has taken its place
  end
end

-- The broker has one message less of this attempt; whether it was one of these.
local function one_acked(record, attempt)
  if not record or not record.unacked or (record.attempt or 0) ~= tonumber(attempt) then return false end
  record.unacked = record.unacked > 1 and record.unacked - 1 or nil
  return true
end

local function note_acked(member)
  local attempt, task = string.match(member, '^(%d+) (.*)$')
  local record, second = load_record(task), load_second(task)
  if one_acked(record, attempt) then
    save_record(task, record)
  else
    redis.call('ZREM', RAN, member)
  end
  if one_acked(second, attempt) then write_second(task, second) end
end

local function hear_notes(said, before)
  for _, each in ipairs(said.began or {}) do forget_message(unpack(each)) end
  local unacked = {}
  for _, member in ipairs(said.unacked or {}) do
    local attempt, task = string.match(member, '^(%d+) (.*)$')
    unacked[member] = true
    note_unacked(task, tonumber(attempt))
  end
  confirm_parked(before, unacked)
  for _, member in ipairs(said.acked or {}) do note_acked(member) end
  for _, task in ipairs(said.revoked or {}) do withdraw(task) end
  for _, each in ipairs(said.never or {}) do
    local identity, task, first = unpack(each)
    give_up_lock(identity, task)
    will_not_ask(identity, first)
  end
end
