-- Put first in front of the scripts that change a counter: a repeated call gets its first reply again.
--
-- KEYS[2] call  STRING  the reply to the call of this id; declared only if the caller chose an id
-- A script whose id has a reply ends here and changes nothing.
local CALL = KEYS[2]
local REMEMBER_MS = 600000

local earlier_reply = CALL and redis.call('GET', CALL)
if earlier_reply then return tonumber(earlier_reply) end

local function remember(reply)
  if CALL then redis.call('SET', CALL, string.format('%.0f', reply), 'PX', REMEMBER_MS) end
  return reply
end
