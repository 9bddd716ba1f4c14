-- Shared by the scripts of a fair semaphore (put in front of them): the held permits and the limit.
--
-- KEYS[1] leases   ZSET    permit -> store time (ms) when its lease ends
-- KEYS[2] holders  HASH    permit -> '<ticket> <since (us)>'
-- KEYS[3], KEYS[4], KEYS[5]  as in line.lua
-- KEYS[6] limit    STRING  how many permits there are, if that was set at run time
-- ARGV[1] how many permits there are otherwise
-- ARGV[2] permit: 16 characters that its caller chose, then the name of its holder
-- Further arguments are in the header of each script. A held permit is in KEYS[1] and KEYS[2], an awaited one
-- in KEYS[3] to KEYS[5]. The keys of such a group exist together and have one TTL.
local LEASES, HOLDERS, LIMIT = KEYS[1], KEYS[2], KEYS[6]
local default_limit, permit = ARGV[1], ARGV[2]
local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local now_ms = math.floor(now_us / 1000)

local function text(number)
  return string.format('%.0f', number)
end

local function limit_now()
  return tonumber(redis.call('GET', LIMIT) or default_limit)
end

-- Write first with a command that a full server allows, because the server then allows the rest.
local function begin_to_write()
  redis.call('HDEL', HOLDERS, '')
end

-- Keep a group of keys until this time at least. Set twice the time left, so that few calls have to set a
-- time.
local function keep(till_ms, ...)
  if redis.call('PTTL', (...)) >= till_ms - now_ms then return end
  for _, key in ipairs({ ... }) do redis.call('PEXPIREAT', key, text(2 * till_ms - now_ms)) end
end

-- Return the ticket and the start (us) of a held permit; nil if the permit is not held.
local function holder_of(held)
  local record = redis.call('HGET', HOLDERS, held)
  if not record then return nil end
  local ticket, since_us = string.match(record, '^(%d+) (%d+)$')
  return { ticket = tonumber(ticket), since_us = tonumber(since_us) }
end

local function lease_till(held, till_ms)
  redis.call('ZADD', LEASES, till_ms, held)
  keep(till_ms, LEASES, HOLDERS)
end

local function grant(given, ticket, till_ms)
  redis.call('HSET', HOLDERS, given, text(ticket) .. ' ' .. text(now_us))
  lease_till(given, till_ms)
end

-- Returns 1 if the permit was held.
local function free(held)
  redis.call('HDEL', HOLDERS, held)
  return redis.call('ZREM', LEASES, held)
end
