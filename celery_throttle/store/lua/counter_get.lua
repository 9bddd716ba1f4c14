-- Read a counter.
-- KEYS[1] value  STRING  the counter, a whole number; no key is 0
-- Returns its value.
return assert(tonumber(redis.call('GET', KEYS[1]) or 0), 'the key of this counter holds something else')
