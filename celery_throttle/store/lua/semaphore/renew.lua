-- Make the lease of a permit end this long from now; other permits stay.
-- KEYS, ARGV[1], ARGV[2] as in permits.lua
-- ARGV[3] lease (ms)
-- Returns 1: renewed, 0: the permit is not held any more.
local lease_ms = ARGV[3]

if redis.call('HEXISTS', HOLDERS, permit) == 0 then return 0 end
begin_to_write()
lease_till(permit, now_ms + lease_ms)
return 1
