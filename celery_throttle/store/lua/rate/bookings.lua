-- Shared by the scripts that ask for a start (put in front of them, after gcra.lua): the present bookings,
-- and the first microsecond at which all rates allow a start.
--
-- KEYS[1] rate  HASH  one field a rate -> '<us> <parts> <us> <parts>': the end of its bookings, now and
--                     before the last booking (once that was cancelled, only now);
--                     'seen' -> store time (us) of the last booking;
--                     'last' -> its id;
--                     'start' -> its start (us), no field once the booking was cancelled
-- ARGV[1] id of this call, ARGV[2] longest wait (us), ARGV[3] number of rates, then for each: field, parts in
-- a microsecond, cost (us), cost (parts), burst (us), burst (parts).
local RATE = KEYS[1]
-- The position of the number of rates in ARGV, and the number of arguments for each rate.
local COUNT_AT, WIDTH = 3, 6
local id, longest_wait_us, count = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
local latest_us = now_us + longest_wait_us

-- Return one rate in the form of gcra.lua, with the field that keeps its bookings.
local function rate_of(number, booking, back_us)
  local at = COUNT_AT + WIDTH * (number - 1)
  local us, parts, before_us, before_parts = string.match(booking or '0 0', '^(%d+) (%d+) ?(%d*) ?(%d*)')
  local rate = {
    field = ARGV[at + 1], in_us = tonumber(ARGV[at + 2]),
    cost_us = tonumber(ARGV[at + 3]), cost_parts = tonumber(ARGV[at + 4]),
    burst_us = tonumber(ARGV[at + 5]), burst_parts = tonumber(ARGV[at + 6]),
    us = math.max(us - back_us, 0),
  }
  rate.parts = math.min(parts, rate.in_us - 1) -- the rate may have changed since
  if before_us ~= '' then
    rate.before_us, rate.before_parts = math.max(before_us - back_us, 0), before_parts
  end
  return rate
end

-- Return all that a start depends on: the rates, the first start that all of them allow, and the id and start
-- of the last booking.
local function read_bookings()
  local fields = { 'seen', 'last', 'start' }
  for number = 1, count do fields[3 + number] = ARGV[COUNT_AT + WIDTH * (number - 1) + 1] end
  local found = redis.call('HMGET', RATE, unpack(fields))
  -- If the clock was set back, move the bookings back, too. Otherwise nothing could start until the clock has
  -- caught up.
  local back_us = math.max(tonumber(found[1] or 0) - now_us, 0)
  local rates, start_us = {}, now_us
  for number = 1, count do
    rates[number] = rate_of(number, found[3 + number], back_us)
    start_us = math.max(start_us, earliest(rates[number], now_us))
  end
  return {
    rates = rates, start_us = start_us,
    last_id = found[2], last_start_us = found[3] and found[3] - back_us, was_set_back = back_us > 0,
  }
end

-- Return { allowed, now (us), start (us), then for each rate the end of its bookings: us, parts }.
local function answer(allowed, start_us, rates)
  local reply = { allowed and 1 or 0, now_us, start_us }
  for _, rate in ipairs(rates) do
    reply[#reply + 1] = rate.us
    reply[#reply + 1] = rate.parts
  end
  return reply
end
