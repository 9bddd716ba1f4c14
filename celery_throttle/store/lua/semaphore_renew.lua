-- Let the lease of a permit end this long from now; any other permit is left as it is.
-- KEYS, ARGV[1], ARGV[2] as in semaphore_common.lua
-- ARGV[3] lease (ms)
-- Returns 1: renewed, 0: it is not held any more.
if redis.call('HEXISTS', HOLDERS, PERMIT) == 0 then return 0 end
redis.call('HDEL', HOLDERS, '') -- a first write that a full server allows, so it allows the rest
lease_till(PERMIT, NOW + ARGV[3])
return 1
