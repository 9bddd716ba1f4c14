-- Grants: parked tasks that a worker was given, until they have begun.

-- The lease of what was granted and has not begun begins anew, with its lock; if that is another's by now,
-- the permit is given back. Returns whether it is held.
local function keep_grant(task, record, message)
  if record.lock and not renew_lock(task, record) then
    ended(task, record.nonce, false, message, 'nothing')
    return false
  end
  redis.call('ZADD', LEASES, NOW + LEASE_MS, task)
  return true
end

-- Those of these tasks that are still held by deliveries whose names begin so, and kept.
local function keep_grants(tasks, nonce)
  local held = {}
  for _, task in ipairs(tasks) do
    local record = load_record(task)
    local granted = record and record.nonce and string.sub(record.nonce, 1, #nonce) == nonce
    if granted and keep_grant(task, record, 'place') then held[#held + 1] = task end
  end
  return held
end

-- What the caller has to know of the parked tasks it got: { task id, record, message } each.
local function told_of(tasks)
  local grants = {}
  for i, task in ipairs(tasks) do
    if load_record(task) then
      state.packed[task] = packed_record(task) -- nothing changes it any more in this call
      grants[#grants + 1] = { task, state.packed[task], redis.call('HGET', MESSAGES, task) or '' }
    end
  end
  return grants
end

-- What was granted may have been reclaimed since, if its worker was away for as long as a lease; else it is
-- kept from now on.
local function answer_row_again(row, answer)
  if answer ~= GRANTED and answer <= HAS_RUN then return answer end
  local record = load_record(row.task)
  if not record or record.nonce ~= row.nonce then return MUST_PARK end
  if not keep_grant(row.task, record, 'broker') then return MUST_PARK end
  -- Not what was kept of the answer: cjson loses digits of a token.
  return record.lock and tonumber(record.lock.fence) or GRANTED
end
