-- Set how many permits there are, for all callers, or leave that to each of them again; hand over what is free then.
-- KEYS, ARGV[1], ARGV[2] ('') as in semaphore_common.lua
-- ARGV[3] how many; '': as many as each caller says
-- Returns 1 if more waiters than one call reaches may get a permit (call again), else 0.
redis.call('DEL', LIMIT)
if ARGV[3] ~= '' then redis.call('SET', LIMIT, ARGV[3]) end
limit = tonumber(ARGV[3]) or tonumber(ARGV[1])
reap()
return hand_over()
