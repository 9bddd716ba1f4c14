-- Grants: parked tasks that were granted to a worker and have not begun.

-- Renew the lease and the lock of a granted task that has not begun. If another task has the lock by now, end
-- the grant. Returns whether the task still holds.
local function keep_grant(task, record, message)
  if record.lock and not renew_lock(task, record) then
    ended(task, record.nonce, false, message, 'nothing')
    return false
  end
  redis.call('ZADD', LEASES, NOW + LEASE_MS, task)
  return true
end

-- Renew the grants among these tasks whose nonces begin with this text. Returns their ids.
local function keep_grants(tasks, nonce)
  local held = {}
  for _, task in ipairs(tasks) do
    local record = load_record(task)
    local granted = record and record.nonce and string.sub(record.nonce, 1, #nonce) == nonce
    if granted and keep_grant(task, record, 'place') then held[#held + 1] = task end
  end
  return held
end

-- Return the granted tasks for the reply: { task id, record, message } each.
local function grant_rows(tasks)
  local grants = {}
  for i, task in ipairs(tasks) do
    if load_record(task) then
      state.packed[task] = packed_record(task) -- the record does not change any more in this call
      grants[#grants + 1] = { task, state.packed[task], redis.call('HGET', MESSAGES, task) or '' }
    end
  end
  return grants
end

-- Answer a row of a repeated call. Its grant may have been reclaimed if the worker was away for a whole
-- lease; else the grant is renewed.
local function answer_row_again(row, answer)
  if answer ~= GRANTED and answer <= ID_IN_USE then return answer end
  local record = load_record(row.task)
  if not record or record.nonce ~= row.nonce then return MUST_PARK end
  if not keep_grant(row.task, record, 'broker') then return MUST_PARK end
  -- Not the number in the stored answer, because cjson loses digits of a token.
  return record.lock and tonumber(record.lock.fence) or GRANTED
end
