-- Shared by the scripts of an identity lock (put in front of them): reads the present grant.
--
-- KEYS[1] lock  STRING  '<fencing token> <since (us)> <owner>', expires with the lease; no key while the lock
--                       is free. Its name is also the channel of the hints.
local LOCK = KEYS[1]

-- Return the fencing token, the start (us) and the owner of the present grant, all as text; nil if the lock
-- is free.
local function present_grant()
  return string.match(redis.call('GET', LOCK) or '', '^(%d+) (%d+) (.*)$')
end
