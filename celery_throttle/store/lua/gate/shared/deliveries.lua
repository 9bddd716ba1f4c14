-- Deliveries: what a worker reports of messages beside its runs: which of them the broker has, which tasks
-- were revoked, and which records it cannot read.

-- The broker has the message of this delivery, which is not needed. It is noted in the record of the task, in
-- that of the delivery that waits beside a run, or for an attempt that a later one has taken the place of.
-- One that has ended by now was noted then, since this call had not come.
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

local function note_acked(task, attempt, nonce)
  local record, second = load_record(task), load_second(task)
  if was_unacked(record, nonce) then save_record(task, record) end
  if was_unacked(second, nonce) then write_second(task, second) end
  will_not_come(attempt .. ' ' .. task, nonce)
end

local function hear_notes(said, before)
  for _, each in ipairs(said.unread or {}) do hear_unread(unpack(each)) end
  if said.unread then settle() end
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

-- The caller was given a parked task, and can make nothing of its record.
local function hear_unread(task, why)
  local packed = redis.call('HGET', RECORDS, task)
  local record = packed and record_in(packed)
  local own = record and string.find(record.nonce or '', state.holder .. ':', 1, true) == 1
  if packed and (own or not record) then to_settle('unreadable task', task, packed, why) end
end
