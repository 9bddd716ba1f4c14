-- Set a counter if it has the expected value.
-- KEYS as in value.lua and call.lua; ARGV[1] expected, ARGV[2] new.
-- Returns 1 if the counter was set, 0 if it has another value.
local expected, new = tonumber(ARGV[1]), tonumber(ARGV[2])
if read() ~= expected then return remember(0) end
write(new)
return remember(1)
