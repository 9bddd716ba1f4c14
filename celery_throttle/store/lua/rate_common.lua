-- Shared by the scripts that ask for a start (put in front of them, after gcra.lua): the first microsecond at which all rates allow it.
--
-- KEYS[1] rate  HASH  per rate: its field -> '<us> <parts> <us> <parts>', until when it is booked, now and before the
--                     last booking (only now, once that was cancelled); 'seen' -> store time (us) of the last booking;
--                     'last' -> its id; 'start' -> its start (us), no field once it was cancelled
-- ARGV[1] id of this call, ARGV[2] longest wait (us), ARGV[3] number of rates, then for each: field, parts in a
-- microsecond, cost (us), cost (parts), burst (us), burst (parts).
local RATE, ID, MAX_WAIT = KEYS[1], ARGV[1], tonumber(ARGV[2])
local clock = redis.call('TIME')
local NOW = clock[1] * 1000000 + clock[2]

local fields = { 'seen', 'last', 'start' }
for i = 1, tonumber(ARGV[3]) do fields[3 + i] = ARGV[6 * i - 2] end
local found = redis.call('HMGET', RATE, unpack(fields))

-- The clock was set back: what is booked moves with it, or nothing would start until the clock has caught up.
local back = math.max(tonumber(found[1] or 0) - NOW, 0)

local function load_rate(i)
  local first = 6 * i - 2
  local us, parts = string.match(found[3 + i] or '0 0', '^(%d+) (%d+)')
  local rate = {
    field = ARGV[first], in_us = tonumber(ARGV[first + 1]),
    cost_us = tonumber(ARGV[first + 2]), cost_parts = tonumber(ARGV[first + 3]),
    burst_us = tonumber(ARGV[first + 4]), burst_parts = tonumber(ARGV[first + 5]),
    us = math.max(us - back, 0),
  }
  rate.parts = math.min(parts, rate.in_us - 1) -- written when the rate was another one
  return rate
end

local rates, start = {}, NOW
for i = 1, tonumber(ARGV[3]) do
  rates[i] = load_rate(i)
  start = math.max(start, earliest(rates[i], NOW))
end

local function answer(allowed)
  local reply = { allowed and 1 or 0, NOW, start }
  for _, rate in ipairs(rates) do
    reply[#reply + 1] = rate.us
    reply[#reply + 1] = rate.parts
  end
  return reply
end
