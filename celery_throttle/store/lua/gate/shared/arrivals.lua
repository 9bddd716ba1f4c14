-- Arrivals: tasks that ask to start.
local MUST_PARK, GRANTED, PARKED, HAS_RUN, CROWDED, SENT_BACK, IS_COPY, ID_IN_USE = 0, 1, 2, 3, 4, 5, 6, 7

-- Compare a delivery with the record of its task. Return true and the answer if the record decides it, else
-- false.
local function meet_record(task, arrival)
  local record = load_record(task) or next(state.unsettled) and mend_record(task) or nil
  if record and record.nonce and record.nonce ~= arrival.nonce then
    local till = tonumber(redis.call('ZSCORE', LEASES, task) or 0)
    if till > NOW or not prolong_if_away() then
      return true, is_of_another(record, arrival) and ID_IN_USE or MUST_PARK
    end
    reclaim(task)
    settle()
    record = load_record(task)
  end
  if record and record.nonce then
    redis.call('ZADD', LEASES, NOW + LEASE_MS, task)
    return true, record.lock and tonumber(record.lock.fence) or GRANTED
  end
  if record then
    if arrival.attempt > (record.attempt or 0) then return true, MUST_PARK end
    if is_of_another(record, arrival) then return true, ID_IN_USE end
    note_delivery(task, arrival)
    return true, IS_COPY
  end
  if confirm_if_finished(task, arrival) then return true, HAS_RUN end
  return false
end

-- Return the end of a time that counts from when the task came to its worker (ms).
local function end_after(arrival, ms)
  return math.floor(NOW - (arrival.age_ms or 0) + ms)
end

local function delivery_of(arrival)
  if arrival.lock then arrival.lock.verdict = arrival.lock.verdict or 'run' end
  return {
    v = VERSION, needs = arrival.needs, queue = arrival.queue, ticket = 0, lock = arrival.lock,
    attempt = arrival.attempt > 0 and arrival.attempt or nil, code = arrival.code,
    publication = arrival.publication,
    deadline = arrival.wait_ms and end_after(arrival, arrival.wait_ms),
    expires = arrival.expires_ms and end_after(arrival, arrival.expires_ms),
  }
end

-- Return whether a task that is not in line finds its permits free, and no other task in line before it.
local function finds_room(task, record)
  local needs, has_sites = needs_of(record.needs), string.find(record.needs, '\29', 1, true)
  if has_sites and is_open(record.needs) then return false end
  -- Tasks of the same lane go first, even if the lane is passed over: this worker can start them.
  if #needs > 0 and any_parked() and redis.call('HEXISTS', LANES, lane_of(record)) == 1 then return false end
  for _, need in ipairs(needs) do
    local bucket = need.bucket
    if not room_for(need) or barred(bucket, task, math.huge) then return false end
    local behind = any_parked() and first_at(has_sites and unbound(bucket) or bucket)
    if behind and not (need.booked and rule_of(bucket).permits == ANY_NUMBER) then return false end
  end
  return true
end

-- Answer a task that asks to start: with its fencing token if it starts and has a lock, else with a number
-- above.
local function admit(task, arrival)
  local met, answer = meet_record(task, arrival)
  if met then return answer end
  local record = delivery_of(arrival)
  if record.lock and settling() > 0 or not finds_room(task, record) then return MUST_PARK end
  -- The lock comes before the permit, so that no task holds a permit while it waits for a lock. A task that
  -- has to be parked takes its lock then, because it may not come to that, and the lock would stay until its
  -- ttl.
  if record.lock and not judge_arrival(task, record) then return MUST_PARK end
  hold(task, record, arrival.nonce, true)
  return record.lock and tonumber(record.lock.fence) or GRANTED
end
