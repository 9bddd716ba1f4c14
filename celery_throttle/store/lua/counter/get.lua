-- Read a counter.
-- KEYS[1] value  STRING  as in value.lua
-- Returns its value.
return assert(tonumber(redis.call('GET', KEYS[1]) or 0), 'the key of this counter holds something else')
