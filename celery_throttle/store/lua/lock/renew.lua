-- Make the lease of one grant end this long from now; any other grant stays.
-- KEYS[1] lock  STRING  as in grant.lua
-- ARGV[1] fencing token of the grant
-- ARGV[2] its owner
-- ARGV[3] lease (ms)
-- Returns 1: renewed, 0: this grant is over.
local token, owner, lease_ms = ARGV[1], ARGV[2], ARGV[3]
local held_token, _, holder = present_grant()
if held_token ~= token or holder ~= owner then return 0 end
-- Not a SET, because a renewal must work when the server is out of memory.
return redis.call('PEXPIRE', LOCK, lease_ms)
