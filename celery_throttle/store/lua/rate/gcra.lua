-- Shared by the scripts that count rates (put in front of them): GCRA, exact. The time between two starts
-- need not be a whole number of microseconds, so it has parts (in_us of them are one), and nothing is
-- rounded. A rate:
--   us, parts              the end of its bookings
--   in_us                  parts in a microsecond
--   cost_us, cost_parts    the cost of a start
--   burst_us, burst_parts  the starts that are allowed at once

-- Return the end of the bookings after one more start at this time. A start is a whole microsecond, so it may
-- be a part of one late. That part is not lost, because the rate would run slow otherwise.
local function booked(rate, start)
  local us, parts = rate.us, rate.parts
  if us < start - 1 or us == start - 1 and parts == 0 then us, parts = start, 0 end
  us, parts = us + rate.cost_us, parts + rate.cost_parts
  if parts >= rate.in_us then us, parts = us + 1, parts - rate.in_us end
  return us, parts
end

-- Return the first microsecond, from now on, at which the rate allows a start.
local function earliest(rate, now_us)
  local us, parts = booked(rate, now_us)
  return math.max(us - rate.burst_us + (parts > rate.burst_parts and 1 or 0), now_us)
end
