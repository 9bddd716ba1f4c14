-- Set how many permits there are, for all callers, or leave that to each of them again; hand over what is
-- free then.
-- KEYS, ARGV[1], ARGV[2] ('') as in permits.lua
-- ARGV[3] how many; '': as many as each caller says
-- Returns 1 if more waiters than one call reaches may get a permit (call again), else 0.
local said = ARGV[3]

redis.call('DEL', LIMIT)
if said ~= '' then redis.call('SET', LIMIT, said) end
reap()
return hand_over(limit_now())
