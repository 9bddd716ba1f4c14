-- Parking: tasks that are set in line, and that go back there.
local PARKED, CROWDED = 1, 0

local function is_crowded(needs)
  for _, need in ipairs(needs) do
    local most = rule_of(need.bucket).max_parked or 0
    if most > 0 and counted_in(WAITING, 'waiting', need.bucket) >= most then return true end
  end
  return false
end

-- A task's place is the moment when it came to its worker, but for how long the call was on its way. Of one
-- worker a task that came later stands later all the same.
local function give_ticket(arrival)
  local age_ms = arrival.age_ms or 0
  local ticket = next_ticket(age_ms)
  local came = state.clock_ms and state.clock_ms - age_ms
  local newest = state.newest
  if newest and came < newest.came then return ticket end
  if newest then ticket = math.max(ticket, newest.ticket + 1) end
  state.newest = came and { came = came, ticket = ticket }
  return ticket
end

-- The record of one that is set aside now, in the place of an earlier attempt if there is one.
local function parked_record(arrival, earlier)
  local record = delivery_of(arrival)
  record.ticket = earlier and earlier.ticket or give_ticket(arrival)
  await_copy(record, arrival)
  if arrival.turn then
    record.turn = arrival.turn
    record.place = earlier and earlier.place or take_turn(arrival.turn, record.ticket)
  end
  if arrival.wait_ms then record.deadline = NOW + arrival.wait_ms end
  return record
end

-- earlier: the record of an earlier attempt that waits, and may have had other arguments.
local function park_new(task, arrival, earlier)
  local record = delivery_of(arrival)
  if record.lock and settling() == 0 then judge_arrival(task, record) end
  -- Whoever does not run itself takes no place in the line.
  if not earlier and is_crowded(needs_of(takes(record))) then return CROWDED end
  record = parked_record(arrival, earlier)
  record.outside = arrival.outside
  if earlier and earlier.dropped then record.expired, record.dropped = true, earlier.dropped end
  redis.call('HSET', MESSAGES, task, arrival.message)
  enqueue(task, record)
  return PARKED
end

-- Another delivery of a task that holds waits for it to end; the newer one, if there are several.
local function keep_second(task, arrival)
  local second = load_second(task)
  if second and arrival.attempt <= (second.attempt or 0) then
    note_delivery(task, arrival)
    return
  end
  if second then finish(task, second, false) end -- there was a retry since
  save_second(task, parked_record(arrival, second), arrival.message)
end

local function park(task, arrival)
  -- Also where there is a record: an earlier attempt may have come again, too.
  if tell_if_finished(task, arrival.attempt) then return HAS_RUN end
  local record = load_record(task) or next(state.unsettled) and mend_record(task) or nil
  if not record then return park_new(task, arrival) end
  if record.nonce then
    keep_second(task, arrival)
  elseif arrival.attempt > (record.attempt or 0) then
    finish(task, record, false)
    leave_line(task, record)
    park_new(task, arrival, record)
  else
    note_delivery(task, arrival)
  end
  return PARKED
end

-- A task that has begun goes back before all others, since the outside said that it is asked too often.
local function send_back(task, arrival, pause_ms, about)
  local record = mend_record(task)
  if record and record.nonce ~= arrival.nonce then return end
  -- With a call that was refused before, a copy of which was on its way.
  if not record and tell_if_finished(task, arrival.attempt) then return end
  redis.call('HSET', MESSAGES, task, arrival.message)
  for _, need in ipairs(needs_of(about)) do hold_back(need.bucket, pause_ms, task) end
  if record then
    record.queue = arrival.queue
    await_copy(record, arrival)
    save_record(task, record)
    ended(task, arrival.nonce, true, 'head', 'nothing')
  else
    -- The store was emptied meanwhile.
    record = delivery_of(arrival)
    await_copy(record, arrival)
    line_up_again(task, record, true, 'head')
  end
end
