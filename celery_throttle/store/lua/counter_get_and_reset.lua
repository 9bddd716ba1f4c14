-- Read a counter and set it to 0.
-- KEYS as in counter_common.lua.
-- Returns the value that it had.
local value = read()
redis.call('DEL', VALUE)
return remember(value)
