-- Something was said of a limit (control.lua): look at all its buckets at once, of whatever key, a page at a
-- time, and hint to who can start something.
-- KEYS, ARGV[1] as in shared/begin.lua; then limit (or limit \31 key), and the bucket to go on after (''
-- at first).
-- Returns the bucket to go on after, '' when that were all.
local limit, after = argument(), argument()
redis.call('ZREM', LEASES, '')
local last = refresh_limit(limit, after)
settle()
hint_ready()
-- Whoever looks is told when: nobody else comes by at the end of a pause.
for queue in pairs(state.later) do hint('ready ' .. queue) end
return last
