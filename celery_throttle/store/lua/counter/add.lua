-- Add to a counter.
-- KEYS as in value.lua and call.lua; ARGV[1] amount, which may be negative.
-- Returns the new value, or nil if that would be out of range.
local amount = tonumber(ARGV[1])
local value = read() + amount
if not fits(value) then return nil end
write(value)
return remember(value)
