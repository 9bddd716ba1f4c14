-- Add to a counter.
-- KEYS as in value.lua and call.lua; ARGV[1] amount, which may be negative.
-- Returns the new value, or nil if it would leave the range.
local amount = tonumber(ARGV[1])
local value = read() + amount
if not fits(value) then return nil end
write(value)
return remember(value)
