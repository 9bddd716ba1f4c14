-- Set the number of permits for all callers, or return to the number that each caller sends; then grant the
-- free permits.
-- KEYS, ARGV[1], ARGV[2] ('') as in permits.lua
-- ARGV[3] how many; '': as many as each caller sends
-- Returns 1 if more waiters than one call reaches may get a permit (call again), else 0.
local permits = ARGV[3]

redis.call('DEL', LIMIT)
if permits ~= '' then redis.call('SET', LIMIT, permits) end
reap()
return hand_over(limit_now())
