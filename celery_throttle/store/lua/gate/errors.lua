-- Say how often workers lost the store, or had a call refused, as far as they could tell.
-- KEYS, ARGV[1] as in shared/begin.lua.
-- Returns how often. Writes nothing.
return tonumber(redis.call('HGET', META, 'errors') or 0)
