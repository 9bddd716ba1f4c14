-- Read a counter and set it to 0.
-- KEYS as in value.lua and call.lua.
-- Returns the value before the reset.
local value = read()
write(0)
return remember(value)
