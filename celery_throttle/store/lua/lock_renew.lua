-- Let the lease of one grant end this long from now; any other grant is left as it is.
-- KEYS[1] lock  STRING  as in lock_acquire.lua
-- ARGV[1] fencing token of the grant
-- ARGV[2] its owner
-- ARGV[3] lease (ms)
-- Returns 1: renewed, 0: this grant is over.
local record = redis.call('GET', KEYS[1])
if not record then return 0 end
local token, owner = string.match(record, '^(%d+) %d+ (.*)$')
if token ~= ARGV[1] or owner ~= ARGV[2] then return 0 end
-- Not a SET: this must go on when the server is out of memory.
return redis.call('PEXPIRE', KEYS[1], ARGV[3])
