-- Holders: taking permits for a task that starts, reclaiming those of workers that are gone.

-- starts: false for one that only comes back.
local function hold(task, record, nonce, starts)
  local waited = record.ticket ~= 0
  record.nonce, record.since = nonce, NOW
  redis.call('ZADD', LEASES, NOW + LEASE_MS, task)
  take(needs_of(takes(record)), starts and nonce, waited)
  if record.lock then lock_started(task, record) end
  if state.settled then redis.call('HDEL', META, 'settling') end
  save_record(task, record)
end

-- Clear a holder whose lease has ended, if there is one. Its row in reclaimed: { task id, its needs, its
-- nonce, the code of the task, how long ago (ms) the lease ended }.
local function reclaim(task)
  local record = load_record(task)
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

local function reap_leases(most)
  local first = first_lease_ends()
  if first <= NOW and not ended_is_lost() then first = first_lease_ends() end
  if first > NOW then
    state.first_lease = first < math.huge and first or nil
    return
  end
  for _, task in ipairs(redis.call('ZRANGEBYSCORE', LEASES, '-inf', NOW, 'LIMIT', 0, most)) do
    reclaim(task)
  end
end

local function forget(hash, field)
  redis.call('HDEL', hash, field)
end

-- Clear what ends by itself. Who goes on since a lock has ended may take it, and come here again for that:
-- then nothing is cleared, or all locks would end one within the other.
local function reap_ends(most)
  if state.reaping then return end
  state.reaping = true
  local ended = redis.call('ZRANGEBYSCORE', ENDS, '-inf', NOW, 'LIMIT', 0, most)
  if #ended > 0 and not ended_is_lost() then
    ended = redis.call('ZRANGEBYSCORE', ENDS, '-inf', NOW, 'LIMIT', 0, most)
  end
  for _, member in ipairs(ended) do
    local kind, field = string.match(member, '^(%l+):(.*)$')
    redis.call('ZREM', ENDS, member)
    if kind == 'locks' then lock_lapsed(field)
    elseif kind == 'awaited' then forget(AWAITED, field)
    elseif kind == 'rates' then forget(RATES, field)
    elseif kind == 'turns' then turn_lapsed(field)
    elseif kind == 'said' then said_lapsed(field)
    elseif kind == 'aside' then forget_aside(field)
    elseif kind == 'workers' then forget(WORKERS, field)
    elseif kind == 'ran' then forget(RAN, field)
    elseif kind == 'meta' then forget(META, field)
    end
  end
  state.reaping = nil
end

-- What time alone brings about, some of each at once: whoever comes does it.
local function reap_all(leases)
  reap_leases(leases)
  if not anybody_waits() then return end
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', DUE, '-inf', NOW, 'LIMIT', 0, 64)) do
    local kind, name = string.match(member, '^(%l+):(.*)$')
    redis.call('ZREM', DUE, member)
    if kind == 'bucket' then touch(name)
    elseif kind == 'lane' then take_back(name, load_lane(name), false)
    elseif kind == 'task' then deadline_passed(name)
    elseif kind == 'lock' then go_on_with(name)
    elseif kind == 'limit' then go_on_after(limit_of(name), name)
    end
  end
  reap_ends(4)
end

local function deadline_passed(task)
  local record = load_record(task)
  if record and not record.nonce then expire_parked(task, record) end
end

-- After how long (ms) time alone may let something start (0: never).
local function next_look_ms()
  if not anybody_waits() then return 0 end
  -- Those that began since end later.
  local lease = state.first_lease or first_lease_ends()
  local due = tonumber(redis.call('ZRANGE', DUE, 0, 0, 'WITHSCORES')[2] or math.huge)
  local first = math.min(lease, due, settling() > 0 and NOW + settling() or math.huge)
  return first < math.huge and math.max(first - NOW, 0) + 2 or 0
end
