-- Report the holder of an identity lock.
-- KEYS[1] lock  STRING  as in grant.lua
-- Returns {fencing token, since (us, store time), lease left (ms), owner}, or nil while the lock is free.
local token, since_us, owner = present_grant()
if not token then return false end
return { tonumber(token), tonumber(since_us), redis.call('PTTL', LOCK), owner }
