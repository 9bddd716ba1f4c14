-- Shared by the scripts of an identity lock (put in front of them): who has it.
--
-- KEYS[1] lock  STRING  '<fencing token> <since (us)> <owner>', expires with the lease; no key while nobody
--                       has it. Its name is also the channel of the hints.
local LOCK = KEYS[1]

-- The present grant: its fencing token, since when (us), its owner, all as text; nil if there is none.
local function present_grant()
  return string.match(redis.call('GET', LOCK) or '', '^(%d+) (%d+) (.*)$')
end
