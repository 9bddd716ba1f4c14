-- Tell what people changed at run time.
-- KEYS, ARGV[1] as in shared/begin.lua.
-- Returns changes as in shared/audit.lua, newest last. Writes nothing.
return redis.call('ZRANGE', AUDIT, 0, -1)
