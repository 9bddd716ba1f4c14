-- Holders: taking permits for a task that starts, and reclaiming the permits of workers that are gone.

-- starts: false for a holder that only comes back.
local function hold(task, record, nonce, starts)
  local waited = record.ticket ~= 0
  record.nonce, record.since, record.again = nonce, NOW, nil
  if state.sites then record.needs = bound(record.needs) end
  redis.call('ZADD', LEASES, NOW + LEASE_MS, task)
  take(needs_of(takes(record)), starts and nonce, waited)
  if record.lock then lock_started(task, record) end
  if state.settled then redis.call('HDEL', META, 'settling') end
  save_record(task, record)
end

-- Reclaim the permits of a holder whose lease has ended, if there is one. Its row in reclaimed: { task id,
-- needs, nonce, code of the task, how long ago (ms) the lease ended }.
local function reclaim(task)
  local record = mend_record(task)
  if not record or not record.nonce then
    redis.call('ZREM', LEASES, task)
    return
  end
  local ended_at = till_of(redis.call('ZSCORE', LEASES, task) or NOW)
  local row = { task, record.needs, record.nonce, record.code or '', math.max(NOW - ended_at, 0) }
  state.reclaimed[#state.reclaimed + 1] = row
  note_lost_run(task, record, ended_at)
  ended(task, record.nonce, not record.lent, 'lost', 'nothing')
end

local function first_lease_ends()
  return tonumber(redis.call('ZRANGE', LEASES, 0, 0, 'WITHSCORES')[2] or math.huge)
end
