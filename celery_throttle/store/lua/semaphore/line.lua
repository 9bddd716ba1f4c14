-- Shared by the scripts that can move the line of a fair semaphore (put in front of them, after permits.lua).
-- It has the order of the waiting permits, and hands free permits over.
--
-- KEYS[3] line     ZSET  awaited permit -> ticket; the lowest is next
-- KEYS[4] looks    ZSET  awaited permit -> store time (ms) when it leaves the line without another look
-- KEYS[5] waiters  HASH  awaited permit -> '<lease (ms)> <channel of its hints>'
local LINE, LOOKS, WAITERS = KEYS[3], KEYS[4], KEYS[5]
local REAPED, HANDED_OVER = 32, 256

-- Returns 1 if the permit was in line.
local function leave_line(awaited)
  redis.call('HDEL', WAITERS, awaited)
  redis.call('ZREM', LOOKS, awaited)
  return redis.call('ZREM', LINE, awaited)
end

-- Remove permits whose lease is over, and places whose callers have not looked for too long.
local function reap()
  local over = redis.call('ZRANGEBYSCORE', LEASES, '-inf', now_ms, 'LIMIT', 0, REAPED)
  for _, held in ipairs(over) do free(held) end
  local silent = redis.call('ZRANGEBYSCORE', LOOKS, '-inf', now_ms, 'LIMIT', 0, REAPED)
  for _, awaited in ipairs(silent) do leave_line(awaited) end
end

-- Return whether the waiting program is connected; a killed one is not.
local function listens(channel)
  local heard = redis.pcall('PUBSUB', 'NUMSUB', channel) -- some users lack the permission
  return (heard[2] or 0) > 0
end

-- Grant the permit to the first in line. The grant lasts for the whole lease if the program listens, else
-- until its next look was due. Returns 1 if the place was still valid.
local function hand_to(first, ticket)
  local lease_ms, channel = string.match(redis.call('HGET', WAITERS, first), '^(%d+) (.*)$')
  local till_ms, look_till_ms = now_ms + lease_ms, tonumber(redis.call('ZSCORE', LOOKS, first))
  leave_line(first)
  if look_till_ms <= now_ms then return 0 end
  if not listens(channel) then till_ms = math.min(till_ms, look_till_ms) end
  grant(first, ticket, till_ms)
  if first ~= permit then
    redis.pcall('PUBLISH', channel, text(till_ms - now_ms) .. ' ' .. text(ticket) .. ' ' .. first)
  end
  return 1
end

-- Grant the free permits in the order of the tickets. Returns 1 if more may be left to grant.
local function hand_over(limit)
  local unused = limit - redis.call('ZCARD', LEASES)
  for _ = 1, HANDED_OVER do
    if unused <= 0 then return 0 end
    local first = redis.call('ZRANGE', LINE, 0, 0, 'WITHSCORES')
    if not first[1] then return 0 end
    unused = unused - hand_to(first[1], first[2])
  end
  return 1
end
