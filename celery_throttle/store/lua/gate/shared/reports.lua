-- Reports: carrying out the rows of a worker's call about deliveries, and about tasks that will not run.

local function apply_change(event, task, attempt, nonce, publication, message, result, began, more)
  if event == 'began' then return forget_message(task, nonce) end
  publication = publication ~= '' and publication or nil
  local delivery = { attempt = attempt, nonce = nonce, publication = publication, unacked = true }
  if event == 'passed' then return pass_on(task, delivery, message, result, more) end
  if event == 'acked' then return note_acked(task, delivery) end
  if event == 'unacked' or more then note_delivery(task, delivery) end
  if event == 'ended' then end_run(task, delivery, message, result, began) end
end

local function apply_changes(rows)
  for _, row in ipairs(rows) do
    apply_change(unpack(row))
    if next(state.unsettled) then settle() end
  end
end

local function end_run(task, delivery, message, result, began)
  local record = ended(task, delivery.nonce, began, message, result)
  if record then return name_buckets(record.needs) end
  ended_late(task, delivery, message, result, mend_record(task))
end

local function pass_on(task, delivery, message, result, to)
  if not passed_on(task, delivery.nonce, result, to) then
    ended_late(task, delivery, message, result, mend_record(task))
  end
  name_buckets(to.needs)
end

local function apply_gone(rows)
  for _, row in ipairs(rows) do
    local why, task, about, first = unpack(row) -- about: the identity, or the error of a record
    if why == 'revoked' then
      withdraw(task)
    elseif why == 'never' then
      give_up_lock(about, task)
      will_not_ask(about, first)
    else
      note_unread(task, about)
    end
    if next(state.unsettled) then settle() end
  end
end
