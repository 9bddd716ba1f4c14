-- Advance a counter by a step, but at least to a floor: value = max(floor, value + step).
-- KEYS as in value.lua and call.lua; ARGV[1] step, ARGV[2] floor, by default the store time (us).
-- Returns the new value, or nil if that would be out of range.
local step, floor = tonumber(ARGV[1]), tonumber(ARGV[2])
if not floor then
  local clock = redis.call('TIME')
  floor = clock[1] * 1000000 + clock[2]
end
local value = math.max(floor, read() + step)
if not fits(value) then return nil end
write(value)
return remember(value)
