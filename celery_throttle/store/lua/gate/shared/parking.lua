-- Parking: putting tasks in line, and back in line.

local function is_crowded(needs)
  for _, need in ipairs(needs) do
    local most = rule_of(need.bucket).max_parked or 0
    if most > 0 and counted_in(WAITING, 'waiting', need.bucket) >= most then return true end
  end
  return false
end

-- Return the ticket of a task: the moment when the task came to its worker, plus the time that the call was
-- on its way. Tasks of one worker keep their order nevertheless, by the clock of the worker.
local function give_ticket(arrival)
  local age_ms = arrival.age_ms or 0
  local came, newest = state.clock_ms and state.clock_ms - age_ms, state.newest
  if newest and came < newest.came then return newest.ticket - math.floor((newest.came - came) * 10) end
  local ticket = next_ticket(age_ms)
  if newest then ticket = math.max(ticket, newest.ticket + 1) end
  state.newest = came and { came = came, ticket = ticket }
  return ticket
end

-- Return the record of a delivery that is parked now, in the place of an earlier attempt if there is one.
local function parked_record(arrival, earlier)
  local record = delivery_of(arrival)
  record.ticket = earlier and earlier.ticket or give_ticket(arrival)
  await_copy(record, arrival)
  if arrival.turn then
    record.turn = arrival.turn
    if record.ticket >= 0 then -- not before all others
      record.place = earlier and earlier.place or take_turn(arrival.turn, record.ticket)
    end
  end
  return record
end

-- earlier: the record of an earlier attempt that waits; its arguments may be others.
local function park_new(task, arrival, earlier)
  local record = delivery_of(arrival)
  if record.lock and settling() == 0 then judge_arrival(task, record) end
  -- Only a task that waits for permits can be refused by a full line.
  if not earlier and is_crowded(needs_of(takes(record))) then return CROWDED end
  record = parked_record(arrival, earlier)
  record.outside = arrival.outside
  if earlier and earlier.dropped then record.expired, record.dropped = true, earlier.dropped end
  redis.call('HSET', MESSAGES, task, arrival.message)
  enqueue(task, record)
  return PARKED
end

-- Keep another delivery until the run of its task ends; of several only the newest.
local function keep_second(task, arrival)
  local second = load_second(task)
  if second and is_of_another(second, arrival) then return ID_IN_USE end
  if second and arrival.attempt <= (second.attempt or 0) then
    note_delivery(task, arrival)
    return IS_COPY
  end
  if second then finish(task, second, false) end -- a retry came in between
  save_second(task, parked_record(arrival, second), arrival.message)
  return PARKED
end

local function park(task, arrival)
  -- Check this even if there is a record, because an earlier attempt may be delivered again.
  if confirm_if_finished(task, arrival) then return HAS_RUN end
  local record = load_record(task) or next(state.unsettled) and mend_record(task) or nil
  if not record then return park_new(task, arrival) end
  if is_of_another(record, arrival) then return ID_IN_USE end
  if record.nonce then return keep_second(task, arrival) end
  if arrival.attempt > (record.attempt or 0) then
    finish(task, record, false)
    leave_line(task, record)
    park_new(task, arrival, record)
    return PARKED
  end
  note_delivery(task, arrival)
  return IS_COPY
end

-- Put a task that has begun back before all others, because an outside service asked to slow down.
local function send_back(task, arrival, pause_ms, about)
  local record = mend_record(task)
  if record and record.nonce ~= arrival.nonce then return SENT_BACK end
  -- A late copy of a refused call has put the task back before, and that attempt is over.
  if not record and confirm_if_finished(task, arrival) then return SENT_BACK end
  redis.call('HSET', MESSAGES, task, arrival.message)
  for _, need in ipairs(needs_of(about)) do hold_back(need.bucket, pause_ms, task) end
  if record then
    record.queue = arrival.queue
    record.expires = arrival.expires_ms and end_after(arrival, arrival.expires_ms)
    await_copy(record, arrival)
    save_record(task, record)
    ended(task, arrival.nonce, true, 'head', 'nothing')
  else
    -- The data was lost in between.
    record = delivery_of(arrival)
    await_copy(record, arrival)
    line_up_again(task, record, true, 'head')
  end
  return SENT_BACK
end
