-- Tick: the work that time alone brings about. Every caller does some of this work.

local function reap_leases(most)
  local first = first_lease_ends()
  if first <= NOW and not prolong_if_away() then first = first_lease_ends() end
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

-- Clear fields whose time is over.
local function reap_ends(most)
  local ended = redis.call('ZRANGEBYSCORE', ENDS, '-inf', NOW, 'LIMIT', 0, most)
  if #ended > 0 and not prolong_if_away() then
    ended = redis.call('ZRANGEBYSCORE', ENDS, '-inf', NOW, 'LIMIT', 0, most)
  end
  for _, member in ipairs(ended) do
    local kind, field = string.match(member, '^(%l+):(.*)$')
    redis.call('ZREM', ENDS, member)
    if kind == 'locks' then lock_lapsed(field)
    elseif kind == 'records' then record_lapsed(field)
    elseif kind == 'rates' then forget(RATES, field)
    elseif kind == 'turns' then turn_lapsed(field)
    elseif kind == 'overrides' then override_lapsed(field)
    elseif kind == 'aside' then forget_aside(field)
    elseif kind == 'workers' then forget(WORKERS, field)
    elseif kind == 'meta' then forget(META, field)
    end
  end
end

-- Do a part of all work that is due.
local function reap_all(leases)
  reap_leases(leases)
  if next(state.unsettled) then settle() end
  if not any_parked() then return end
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', DUE, '-inf', NOW, 'LIMIT', 0, 64)) do
    if state.moves <= 0 then break end
    local kind, name = string.match(member, '^(%l+):(.*)$')
    redis.call('ZREM', DUE, member)
    state.moves = state.moves - 1
    if kind == 'bucket' then touch(name)
    elseif kind == 'lane' then take_back(name, load_lane(name))
    elseif kind == 'task' then time_came(name)
    elseif kind == 'lock' then go_on_with(name)
    elseif kind == 'concluded' or kind == 'lost' then
      local identity, first = string.match(name, '^([^:]*):(.*)$')
      followers_conclude(identity, first, kind == 'lost' and 1 or nil, true)
    elseif kind == 'limit' then go_on_after(limit_of(name), name)
    elseif kind == 'moment' then moment_over(name)
    end
    if next(state.unsettled) then settle() end
  end
  reap_ends(4)
  if next(state.unsettled) then settle() end
end

-- The wait of a parked task has ended, or its pause is over.
local function time_came(task)
  local record = load_record(task)
  if not record then return drop_paused_strays() end
  if record.nonce or record.expired then return end
  if not record.again or wait_ends(record) <= NOW then return expire_parked(task, record) end
  leave_line(task, record)
  record.again = nil
  enqueue(task, record)
end

-- Return after how long (ms) time alone may let a task start (0: never).
local function next_look_ms()
  if not any_parked() then return 0 end
  -- Leases that began during this call end later.
  local lease = state.first_lease or first_lease_ends()
  local due = tonumber(redis.call('ZRANGE', DUE, 0, 0, 'WITHSCORES')[2] or math.huge)
  local first = math.min(lease, due, settling() > 0 and NOW + settling() or math.huge)
  return first < math.huge and math.max(first - NOW, 0) + 2 or 0
end

-- End an identity lock whose time is over before a row asks for it: the lock itself, or the lease of the run
-- that has the lock.
local function end_lock_if_over(identity)
  local till = lock_till(identity)
  if till > 0 and till <= NOW and (not is_running(identity) or prolong_if_away()) then
    redis.call('ZREM', ENDS, 'locks:' .. identity)
    lock_lapsed(identity)
  end
  local lock = load_lock(identity)
  if lock and lock.state == 'running' then
    local lease = redis.call('ZSCORE', LEASES, lock.task)
    if lease and tonumber(lease) <= NOW and prolong_if_away() then reclaim(lock.task) end
  end
  if next(state.unsettled) then settle() end
end

-- Judge a task that is not in line, and settle the consequences for other tasks. Returns whether the task may
-- run.
local function judge_arrival(task, record)
  end_lock_if_over(record.lock.identity)
  local runs = judge_record(task, record)
  if next(state.unsettled) then settle() end
  return runs
end
