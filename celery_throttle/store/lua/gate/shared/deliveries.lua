-- Deliveries: messages that the broker has beside the runs of a worker; tasks that a worker cannot read.

-- Store that the broker has the message of this delivery, which is not needed. The copy belongs to the
-- delivery with the same attempt: the second one, or that of the record. The copy of a message that is over,
-- or that a later attempt has replaced, is stored as finished. A message that was over before this call has
-- kept its copies.
local function note_delivery(task, delivery)
  local record, second, attempt = load_record(task), load_second(task), delivery.attempt
  if second and (second.attempt or 0) == attempt and may_be_copies(second, delivery) then
    await_copy(second, delivery)
    mark_changed(task)
  elseif record and (record.attempt or 0) == attempt and may_be_copies(record, delivery) then
    await_copy(record, delivery)
    mark_changed(task)
  elseif math.max(record and record.attempt or 0, second and second.attempt or 0) > attempt
    or finished_as(task, delivery) then
    local over = { attempt = attempt, publication = delivery.publication }
    await_copy(over, delivery)
    finish(task, over, false)
  end
end

local function note_acked(task, delivery)
  local record = record_of(task)
  if drop_copy(record, delivery.nonce) or drop_copy(record.second, delivery.nonce) then mark_changed(task) end
  will_not_come(task, finished_as(task, delivery), delivery.nonce)
end

-- Set aside a task that was granted to the caller, which cannot read its record.
local function note_unread(task, why)
  local record = load_record(task)
  local own = record and string.find(record.nonce or '', state.holder .. ':', 1, true) == 1
  if own then to_settle('unreadable task', task, packed_record(task), why) end
end
