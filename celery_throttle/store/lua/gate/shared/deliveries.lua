-- Deliveries: messages that the broker has beside the runs of a worker; tasks that a worker cannot read.

-- Store that the broker has the message of this delivery, which is not needed. The copy belongs to the
-- delivery with the same attempt: the second one, or that of the record. The copy of an attempt that is over,
-- or that a later one has replaced, is stored as finished. An attempt that ended before this call has kept
-- its copies, so has_run is true.
local function note_delivery(task, delivery)
  local record, second, attempt = load_record(task), load_second(task), delivery.attempt
  if second and (second.attempt or 0) == attempt then
    await_copy(second, delivery)
    mark_changed(task)
  elseif record and (record.attempt or 0) == attempt then
    await_copy(record, delivery)
    mark_changed(task)
  elseif math.max(record and record.attempt or 0, second and second.attempt or 0) > attempt
    or has_run(task, attempt) then
    local over = { attempt = attempt }
    await_copy(over, delivery)
    finish(task, over, false)
  end
end

local function note_acked(task, attempt, nonce)
  local record = record_of(task)
  if drop_copy(record, nonce) or drop_copy(record.second, nonce) then mark_changed(task) end
  will_not_come(task, attempt, nonce)
end

-- Set aside a task that was granted to the caller, which cannot read its record.
local function note_unread(task, why)
  local record = load_record(task)
  local own = record and string.find(record.nonce or '', state.holder .. ':', 1, true) == 1
  if own then to_settle('unreadable task', task, packed_record(task), why) end
end
