-- Shared by the scripts that can move the line of a fair semaphore (put in front of them, after permits.lua):
-- who waits for a permit, and who is next.
--
-- KEYS[3] line     ZSET  permit that somebody waits for -> ticket; the lowest is next
-- KEYS[4] looks    ZSET  permit that somebody waits for -> store time (ms) when it leaves the line, unless it
--                        looks again
-- KEYS[5] waiters  HASH  permit that somebody waits for -> '<lease (ms)> <channel of its hints>'
local LINE, LOOKS, WAITERS = KEYS[3], KEYS[4], KEYS[5]
local REAPED, HANDED_OVER = 32, 256

-- Returns 1 if it was in line.
local function leave_line(awaited)
  redis.call('HDEL', WAITERS, awaited)
  redis.call('ZREM', LOOKS, awaited)
  return redis.call('ZREM', LINE, awaited)
end

-- Take away permits whose lease is over, and places of which nobody was heard for too long.
local function reap()
  local over = redis.call('ZRANGEBYSCORE', LEASES, '-inf', now_ms, 'LIMIT', 0, REAPED)
  for _, held in ipairs(over) do free(held) end
  local silent = redis.call('ZRANGEBYSCORE', LOOKS, '-inf', now_ms, 'LIMIT', 0, REAPED)
  for _, awaited in ipairs(silent) do leave_line(awaited) end
end

-- Whether the program that waits is connected: a program that was killed is not.
local function listens(channel)
  local heard = redis.pcall('PUBSUB', 'NUMSUB', channel) -- some users may not
  return (heard[2] or 0) > 0
end

-- The first in line has the permit from here on: for its lease if it hears of that, else until it had to look
-- again.
-- Returns 1 if it was still there to take it.
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

-- Give what is free to those who wait, in the order of their tickets. Returns 1 if that was not all.
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
