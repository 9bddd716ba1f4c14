-- Book the first start that all rates allow, unless it is too far away; a call sent again gets the same start
-- if nobody booked in between.
-- KEYS, ARGV as in bookings.lua.
-- Returns { booked, now (us), start (us), then for each rate until when it is booked: us, parts }.
local KEEP_MS = 60000
local text = string.format

-- Book a start in all rates, and note that it is the last one.
local function book(start_us, rates)
  local changes = { 'seen', text('%.0f', now_us), 'last', id, 'start', text('%.0f', start_us) }
  local till_us = now_us
  for _, rate in ipairs(rates) do
    -- From the start, not from now: each rate sees the starts when they happen.
    local us, parts = booked(rate, start_us)
    changes[#changes + 1] = rate.field
    changes[#changes + 1] = text('%.0f %.0f %.0f %.0f', us, parts, rate.us, rate.parts)
    rate.us, rate.parts, till_us = us, parts, math.max(till_us, us)
  end
  redis.call('HSET', RATE, unpack(changes))
  -- Once the last booking is used up, no key says the same; until then plus the time in which a call may be
  -- sent again.
  redis.call('PEXPIRE', RATE, text('%.0f', math.ceil((till_us - now_us) / 1000) + KEEP_MS))
end

-- Whoever is refused comes nearer to its start from now on, though the clock has not caught up.
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
