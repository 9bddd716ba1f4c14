-- Outages: no worker can renew while the store is away, so an ended lease does not mean a lost worker. The
-- first caller that comes back gives all leases a moment more, once.
local MOMENT_MS, SILENCE_MS = 4000, 6000

local function called_since(packed, since)
  local known = readable(packed, 'worker')
  return known and (known.since or 0) >= since
end

-- Return whether a worker has called lately. If so, no live worker has missed all its renewals: the lease of
-- a worker that renews after each third of it lasts for two thirds at least.
local function called_lately()
  local since, cursor = NOW - math.max(LEASE_MS / 3, math.min(SILENCE_MS, LEASE_MS / 2)), '0'
  for _ = 1, 100 do
    local page = redis.call('HSCAN', WORKERS, cursor, 'COUNT', 100)
    for i = 2, #page[2], 2 do
      if called_since(page[2][i], since) then return true end
    end
    cursor = page[1]
    if cursor == '0' then return false end
  end
  return true
end

-- Return when the last such moment ends. A lease that ends exactly then has not been renewed since.
local function last_moment()
  return meta_number('moment', NOW + 2 * MOMENT_MS)
end

local function was_away()
  if state.away_ms >= LEASE_MS / 3 then return true end
  local last = tonumber(redis.call('ZRANGE', LEASES, -1, -1, 'WITHSCORES')[2] or math.huge)
  return last <= NOW and last ~= last_moment() and not called_lately()
end

local function is_running(identity)
  local lock = kept_lock(identity)
  return lock and (lock.state == 'running' or lock.state == 'started')
end

-- Includes leases that would end before the moment does. A caller that comes back during the moment gives no
-- other.
local function prolong_leases()
  local before = last_moment()
  local till = before > NOW and before or NOW + MOMENT_MS
  local ended = redis.call('ZRANGEBYSCORE', LEASES, '-inf', till, 'WITHSCORES', 'LIMIT', 0, 10000)
  for i = 1, #ended, 2 do
    if tonumber(ended[i + 1]) ~= before then redis.call('ZADD', LEASES, till, ended[i]) end
  end
  redis.call('HSET', META, 'moment', string.format('%.0f', till))
end

-- Locks of running tasks outlive their leases, but not every outage.
local function prolong_locks()
  if redis.call('EXISTS', LOCKS) == 0 then return end
  local till = NOW + 2 * MOMENT_MS
  for _, member in ipairs(redis.call('ZRANGEBYSCORE', ENDS, '-inf', till, 'LIMIT', 0, 10000)) do
    local identity = string.match(member, '^locks:(.*)$')
    if identity and is_running(identity) then redis.call('ZADD', ENDS, till, member) end
  end
end

-- Return whether leases that have ended count as lost.
local function ended_is_lost()
  if state.away == nil then state.away = was_away() end
  return not state.away
end

-- If the store was away, give ended leases a moment more from now on. Returns whether ended leases count as
-- lost.
local function prolong_if_away()
  if ended_is_lost() then return true end
  if not state.prolonged then
    state.prolonged = true
    prolong_leases()
    prolong_locks()
  end
  return false
end

-- Look before any renewal, because a renewal hides that there was none for long.
local function look_at_ended()
  if first_lease_ends() <= NOW + MOMENT_MS then prolong_if_away() end
end
