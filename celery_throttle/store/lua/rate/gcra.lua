-- Shared by whatever counts rates (put in front of it): GCRA, exact. The time between two starts need not be
-- a whole number of microseconds, so it has parts (in_us of them are one), and nothing is rounded. A rate:
-- until when it is booked (us, parts), in_us, what a start costs (cost_us, cost_parts), and what may start at
-- once (burst_us, burst_parts).

-- Until when it is booked if this call starts then. A start is a whole microsecond and may be a part of one
-- late; that part is not lost, or the rate would run slow.
local function booked(rate, start)
  local us, parts = rate.us, rate.parts
  if us < start - 1 or us == start - 1 and parts == 0 then us, parts = start, 0 end
  us, parts = us + rate.cost_us, parts + rate.cost_parts
  if parts >= rate.in_us then us, parts = us + 1, parts - rate.in_us end
  return us, parts
end

-- The first microsecond, from this one on, at which the rate allows a start.
local function earliest(rate, now_us)
  local us, parts = booked(rate, now_us)
  return math.max(us - rate.burst_us + (parts > rate.burst_parts and 1 or 0), now_us)
end
