-- Return the changes that people made at run time.
-- KEYS, ARGV[1] as in shared/begin.lua.
-- Returns changes as in shared/audit.lua, newest last. Writes nothing.
state.only_reads = true
return redis.call('ZRANGE', AUDIT, 0, -1)
