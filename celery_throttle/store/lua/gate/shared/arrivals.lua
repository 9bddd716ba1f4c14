-- Arrivals: tasks that want to start, and tasks that are set aside.
local MUST_PARK, GRANTED, KNOWN, HAS_RUN = 0, 1, 2, 3
local PARKED, CROWDED = 1, 0

-- What a delivery finds of its own task: true if that is all there is to it for now, and what to answer.
local function meet_record(task, arrival)
  local record = load_record(task)
  if record and record.nonce and record.nonce ~= arrival.nonce then
    local till = tonumber(redis.call('ZSCORE', LEASES, task) or 0)
    if till > NOW or not ended_is_lost() then return true, MUST_PARK end
    reclaim(task)
    record = load_record(task)
  end
  if record and record.nonce then
    redis.call('ZADD', LEASES, NOW + LEASE_MS, task)
    return true, record.lock and tonumber(record.lock.fence) or GRANTED
  end
  if record then
    if arrival.attempt > (record.attempt or 0) then return true, MUST_PARK end
    note_delivery(task, arrival)
    return true, KNOWN
  end
  if tell_if_ran(task, arrival.attempt) then return true, HAS_RUN end
  return false
end

local function record_of(arrival)
  if arrival.lock then arrival.lock.verdict = arrival.lock.verdict or 'run' end
  return {
    v = VERSION, needs = arrival.needs, queue = arrival.queue, ticket = 0, lock = arrival.lock,
    attempt = arrival.attempt > 0 and arrival.attempt or nil, code = arrival.code,
  }
end

-- Answer a task that wants to start now: its fencing token if it has a lock, else an answer as above.
local function admit(task, arrival)
  local met, answer = meet_record(task, arrival)
  if met then return answer end
  local record = record_of(arrival)
  -- The lock comes before the permit, so nobody waits for a lock while holding a permit.
  if record.lock and (settling() > 0 or not judge_record(task, record)) then return MUST_PARK end
  local needs = needs_of(arrival.needs)
  -- Those of its own queue are not passed over any more: here is who can start them.
  if #needs > 0 and anybody_waits() and redis.call('HEXISTS', LANES, lane_of(record)) == 1 then
    return MUST_PARK
  end
  for _, need in ipairs(needs) do
    local bucket = need.bucket
    if not room_for(need) or barred(bucket, task, math.huge) then return MUST_PARK end
    local behind = anybody_waits() and first_at(bucket)
    if behind and not (need.booked and rule_of(bucket).permits == ANY_NUMBER) then return MUST_PARK end
  end
  hold(task, record, arrival.nonce, true)
  return record.lock and tonumber(record.lock.fence) or GRANTED
end

local function is_crowded(needs)
  for _, need in ipairs(needs) do
    local most = rule_of(need.bucket).max_parked or 0
    if most > 0 and counted_in(WAITING, 'waiting', need.bucket) >= most then return true end
  end
  return false
end

-- A task's place is the moment when it came to its worker, however long the call took that says so. How late
-- that is gets known better with each call: of one worker, who came later stands later all the same.
local function ticket_of(arrival)
  local age_ms = arrival.age_ms or 0
  local ticket = next_ticket(age_ms + state.late_ms)
  local came = state.clock_ms and state.clock_ms - age_ms
  local newest = state.newest
  if newest and came < newest.came then return ticket end
  if newest then ticket = math.max(ticket, newest.ticket + 1) end
  state.newest = came and { came = came, ticket = ticket }
  return ticket
end

-- The record of one that is set aside now, in the place of an earlier attempt if there is one.
local function parked_record(arrival, earlier)
  local record = record_of(arrival)
  record.ticket = earlier and earlier.ticket or ticket_of(arrival)
  await_acknowledgement(record, arrival)
  if arrival.turn then
    record.turn = arrival.turn
    record.place = earlier and earlier.place or fair_place(arrival.turn, record.ticket)
  end
  if arrival.wait_ms then record.deadline = NOW + arrival.wait_ms end
  return record
end

-- earlier: the record of an earlier attempt that waits, and may have had other arguments.
local function park_new(task, arrival, earlier)
  local record = record_of(arrival)
  if record.lock and settling() == 0 then judge_record(task, record) end
  -- Whoever does not run itself takes no place in the line.
  if not earlier and is_crowded(needs_of(takes(record))) then return CROWDED end
  record = parked_record(arrival, earlier)
  record.outside = arrival.outside
  if earlier and earlier.dropped then record.expired, record.dropped = true, earlier.dropped end
  redis.call('HSET', MESSAGES, task, arrival.message)
  enqueue(task, record)
  return PARKED
end

local function park(task, arrival)
  -- Also where there is a record: an earlier attempt may have come again, too.
  if tell_if_ran(task, arrival.attempt) then return HAS_RUN end
  local record = load_record(task)
  if not record then return park_new(task, arrival) end
  if record.nonce then
    keep_second(task, arrival)
  elseif arrival.attempt > (record.attempt or 0) then
    note_ran(task, record, false)
    leave_line(task, record)
    park_new(task, arrival, record)
  else
    note_delivery(task, arrival)
  end
  return PARKED
end

-- A task that has begun goes back before all others, since the outside said that it is asked too often.
local function send_back(task, arrival, pause_ms, about)
  local record = load_record(task)
  if record and record.nonce ~= arrival.nonce then return end
  -- With a call that was refused before, a copy of which was on its way.
  if not record and tell_if_ran(task, arrival.attempt) then return end
  redis.call('HSET', MESSAGES, task, arrival.message)
  for _, need in ipairs(needs_of(about)) do hold_back(need.bucket, pause_ms, task) end
  if record then
    record.queue = arrival.queue
    await_acknowledgement(record, arrival)
    save_record(task, record)
    ended(task, arrival.nonce, true, 'head', 'nothing')
  else
    -- The store was emptied meanwhile.
    record = record_of(arrival)
    await_acknowledgement(record, arrival)
    line_up_again(task, record, true, 'head')
  end
end
