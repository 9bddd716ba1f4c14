-- Set a counter if it has the expected value.
-- KEYS as in counter_common.lua; ARGV[1] expected, ARGV[2] new.
-- Returns 1 if it was set, 0 if it has another value.
if read() ~= tonumber(ARGV[1]) then return remember(0) end
write(tonumber(ARGV[2]))
return remember(1)
