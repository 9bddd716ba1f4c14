-- Book the first start that all rates allow, unless it is too far away; a call sent again gets the same start if nobody
-- booked in between.
-- KEYS, ARGV as in rate_common.lua.
-- Returns { booked, now (us), start (us), then for each rate until when it is booked: us, parts }.
local KEEP_MS = 60000

if found[2] == ID and found[3] then
  start = found[3] - back
  return answer(start - NOW <= MAX_WAIT)
end
if start - NOW > MAX_WAIT then return answer(false) end

local text = string.format
local changes, till = { 'seen', text('%.0f', NOW), 'last', ID, 'start', text('%.0f', start) }, NOW
for _, rate in ipairs(rates) do
  -- From the start, not from now: each rate sees the starts when they happen.
  local us, parts = booked(rate, start)
  changes[#changes + 1] = rate.field
  changes[#changes + 1] = text('%.0f %.0f %.0f %.0f', us, parts, rate.us, rate.parts)
  rate.us, rate.parts, till = us, parts, math.max(till, us)
end
redis.call('HSET', RATE, unpack(changes))
-- Once the last booking is used up, no key says the same; until then plus the time in which a call may be sent again.
redis.call('PEXPIRE', RATE, text('%.0f', math.ceil((till - NOW) / 1000) + KEEP_MS))
return answer(true)
