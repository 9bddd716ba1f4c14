-- Add to a counter.
-- KEYS as in counter_common.lua; ARGV[1] amount, which may be negative.
-- Returns the new value, or nil if it would leave the range.
local value = read() + ARGV[1]
if not fits(value) then return nil end
write(value)
return remember(value)
