-- Shared by the scripts that change a counter (put in front of them, after call.lua): its value.
--
-- KEYS[1] value  STRING  the counter, a whole number; no key means 0
-- Numbers in Lua are exact only within a range. A script that would leave that range returns nil and changes
-- nothing.
local VALUE = KEYS[1]
local MOST = 9007199254740991

local function read()
  return assert(tonumber(redis.call('GET', VALUE) or 0), 'the key of this counter holds something else')
end

local function fits(value)
  return value >= -MOST and value <= MOST
end

local function write(value)
  if value == 0 then
    redis.call('DEL', VALUE)
  else
    redis.call('SET', VALUE, string.format('%.0f', value))
  end
end
