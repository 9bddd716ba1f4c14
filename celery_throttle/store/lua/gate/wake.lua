-- Look at all buckets of a limit after a change by control.lua, a page at a time, and hint to workers that
-- can start a task.
-- KEYS, ARGV[1] as in shared/begin.lua; then limit (or limit \31 key), and the bucket to go on after (''
-- at first).
-- Returns the bucket to go on after, '' after the last.
local limit, after = argument(), argument()
redis.call('ZREM', LEASES, '')
local last = refresh_limit(limit, after)
settle()
hint_ready()
return last
