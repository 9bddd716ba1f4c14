-- Say who has an identity lock.
-- KEYS[1] lock  STRING  as in lock_acquire.lua
-- Returns {fencing token, since (us, store time), lease left (ms), owner}, or nil while nobody has it.
local record = redis.call('GET', KEYS[1])
if not record then return false end
local token, since, owner = string.match(record, '^(%d+) (%d+) (.*)$')
return { tonumber(token), tonumber(since), redis.call('PTTL', KEYS[1]), owner }
