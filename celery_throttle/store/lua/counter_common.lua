-- Shared by the scripts that change a counter (put in front of them): its value, and the replies of earlier calls.
--
-- KEYS[1] value  STRING  the counter, a whole number; no key is 0
-- KEYS[2] call   STRING  the reply to the call of this id; declared only if the caller chose an id
-- ARGV as each script says.
-- A script with a known id returns that reply and changes nothing. One that would leave the range in which the numbers
-- of Lua are exact returns nil and changes nothing.
local VALUE, CALL = KEYS[1], KEYS[2]
local MAX, REMEMBER_MS = 9007199254740991, 600000

if CALL then
  local reply = redis.call('GET', CALL)
  if reply then return tonumber(reply) end
end

local function read()
  return assert(tonumber(redis.call('GET', VALUE) or 0), 'the key of this counter holds something else')
end

local function fits(value)
  return value >= -MAX and value <= MAX
end

local function write(value)
  if value == 0 then
    redis.call('DEL', VALUE)
  else
    redis.call('SET', VALUE, string.format('%.0f', value))
  end
end

local function remember(reply)
  if CALL then redis.call('SET', CALL, string.format('%.0f', reply), 'PX', REMEMBER_MS) end
  return reply
end
