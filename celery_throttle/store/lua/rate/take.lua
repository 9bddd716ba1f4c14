-- Book the first start that all rates allow, unless it is too far away; a repeated call gets the same start
-- if no other booking came in between.
-- KEYS, ARGV as in bookings.lua.
-- Returns { booked, now (us), start (us), then for each rate the end of its bookings: us, parts }.
local KEEP_MS = 60000
local text = string.format

-- Book a start in all rates, and store its id as that of the last booking.
local function book(start_us, rates)
  local changes = { 'seen', text('%.0f', now_us), 'last', id, 'start', text('%.0f', start_us) }
  local till_us = now_us
  for _, rate in ipairs(rates) do
    -- From the start, not from now: each rate counts a start when it happens.
    local us, parts = booked(rate, start_us)
    changes[#changes + 1] = rate.field
    changes[#changes + 1] = text('%.0f %.0f %.0f %.0f', us, parts, rate.us, rate.parts)
    rate.us, rate.parts, till_us = us, parts, math.max(till_us, us)
  end
  redis.call('HSET', RATE, unpack(changes))
  -- A missing key means the same as bookings that have ended. Keep the key until they end, plus the time in
  -- which a call may be repeated.
  redis.call('PEXPIRE', RATE, text('%.0f', math.ceil((till_us - now_us) / 1000) + KEEP_MS))
end

-- The clock was set back: store the bookings as moved. So a refused caller comes nearer to its start before
-- the clock has caught up.
local function follow_clock(bookings)
  redis.call('HSET', RATE, 'seen', text('%.0f', now_us))
  if bookings.last_start_us then redis.call('HSET', RATE, 'start', text('%.0f', bookings.last_start_us)) end
  for _, rate in ipairs(bookings.rates) do
    local before = rate.before_us and text(' %.0f %s', rate.before_us, rate.before_parts) or ''
    redis.call('HSET', RATE, rate.field, text('%.0f %.0f', rate.us, rate.parts) .. before)
  end
end

local bookings = read_bookings()
if bookings.last_id == id and bookings.last_start_us then
  return answer(bookings.last_start_us <= latest_us, bookings.last_start_us, bookings.rates)
end
if bookings.start_us > latest_us then
  if bookings.was_set_back then follow_clock(bookings) end
  return answer(false, bookings.start_us, bookings.rates)
end
book(bookings.start_us, bookings.rates)
return answer(true, bookings.start_us, bookings.rates)
