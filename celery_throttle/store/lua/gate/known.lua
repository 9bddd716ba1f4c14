-- Ask which of some tasks the store has a record of.
-- KEYS, ARGV[1] as in shared/begin.lua; then n, n task ids.
-- Returns 1 or 0 for each. Writes nothing.
state.only_reads = true
local tasks = {}
for i = 1, number() do tasks[i] = argument() end
local rows = redis.call('HMGET', RECORDS, unpack(tasks))
for i = 1, #tasks do rows[i] = rows[i] and 1 or 0 end
return rows
