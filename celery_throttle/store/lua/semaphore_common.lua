-- Shared by the scripts of a fair semaphore (put in front of them): who holds its permits, and who is next.
--
-- KEYS[1] leases   ZSET    permit -> store time (ms) when its lease ends
-- KEYS[2] holders  HASH    permit -> '<ticket> <since (us)>'
-- KEYS[3] line     ZSET    permit that somebody waits for -> ticket; the lowest is next
-- KEYS[4] looks    ZSET    permit that somebody waits for -> store time (ms) when it leaves the line, unless it looks again
-- KEYS[5] waiters  HASH    permit that somebody waits for -> '<lease (ms)> <channel of its hints>'
-- KEYS[6] limit    STRING  how many permits there are, if that was set at run time
-- ARGV[1] how many permits there are otherwise
-- ARGV[2] permit: 16 characters that its caller chose, then the name of its holder; each script goes on from there.
-- A permit is in the first two keys, or in the three after them: both groups come and go together and have one TTL.
local LEASES, HOLDERS, LINE, LOOKS, WAITERS, LIMIT = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local PERMIT = ARGV[2]
local REAPED, HANDED_OVER = 32, 256

local clock = redis.call('TIME')
local NOW_US = clock[1] * 1000000 + clock[2]
local NOW = math.floor(NOW_US / 1000)
local limit = tonumber(redis.call('GET', LIMIT) or ARGV[1])

local function text(number)
  return string.format('%.0f', number)
end

-- Let a group of keys last until then at least; twice that, so that this need not be written every time.
local function keep(till, ...)
  if redis.call('PTTL', (...)) >= till - NOW then return end
  for _, key in ipairs({ ... }) do redis.call('PEXPIREAT', key, text(2 * till - NOW)) end
end

local function free(permit)
  redis.call('HDEL', HOLDERS, permit)
  return redis.call('ZREM', LEASES, permit)
end

local function leave_line(permit)
  redis.call('HDEL', WAITERS, permit)
  redis.call('ZREM', LOOKS, permit)
  return redis.call('ZREM', LINE, permit)
end

local function reap()
  for _, permit in ipairs(redis.call('ZRANGEBYSCORE', LEASES, '-inf', NOW, 'LIMIT', 0, REAPED)) do free(permit) end
  for _, permit in ipairs(redis.call('ZRANGEBYSCORE', LOOKS, '-inf', NOW, 'LIMIT', 0, REAPED)) do leave_line(permit) end
end

local function lease_till(permit, till)
  redis.call('ZADD', LEASES, till, permit)
  keep(till, LEASES, HOLDERS)
end

local function grant(permit, ticket, till)
  redis.call('HSET', HOLDERS, permit, text(ticket) .. ' ' .. text(NOW_US))
  lease_till(permit, till)
end

-- Whether the program that waits is connected: a program that was killed is not.
local function listens(channel)
  local heard = redis.pcall('PUBSUB', 'NUMSUB', channel) -- some users may not
  return (heard[2] or 0) > 0
end

-- It has the permit from here on: for its lease if it hears of that, else until it had to look again.
local function hand_to(permit, ticket)
  local lease, channel = string.match(redis.call('HGET', WAITERS, permit), '^(%d+) (.*)$')
  local till, look_till = NOW + lease, tonumber(redis.call('ZSCORE', LOOKS, permit))
  leave_line(permit)
  if look_till <= NOW then return 0 end
  if not listens(channel) then till = math.min(till, look_till) end
  grant(permit, ticket, till)
  if permit ~= PERMIT then
    redis.pcall('PUBLISH', channel, text(till - NOW) .. ' ' .. text(ticket) .. ' ' .. permit)
  end
  return 1
end

-- Give what is free to those who wait, in the order of their tickets. Returns 1 if that was not all.
local function hand_over()
  local free_permits = limit - redis.call('ZCARD', LEASES)
  for _ = 1, HANDED_OVER do
    if free_permits <= 0 then return 0 end
    local first = redis.call('ZRANGE', LINE, 0, 0, 'WITHSCORES')
    if not first[1] then return 0 end
    free_permits = free_permits - hand_to(first[1], first[2])
  end
  return 1
end
