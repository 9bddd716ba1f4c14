-- End one grant of an identity lock and wake the waiting callers; any other grant stays.
-- KEYS[1] lock     STRING  as in grant.lua
-- KEYS[2] receipt  STRING  '1' for a while after this script ended the grant, so that a call repeated after
--                          a lost reply gets the same answer
-- ARGV[1] fencing token of the grant; '': any token of this owner
-- ARGV[2] its owner; '': any owner
-- ARGV[3] how long the receipt lasts (ms)
-- Returns 1: ended, by this call or by an earlier copy of it, 0: there is no such grant.
local RECEIPT = KEYS[2]
local token, owner, receipt_ms = ARGV[1], ARGV[2], ARGV[3]

local held_token, _, holder = present_grant()
local is_meant = held_token and (token == '' or token == held_token) and (owner == '' or owner == holder)
if not is_meant then return redis.call('EXISTS', RECEIPT) end
-- The DEL goes first, because a server that is out of memory allows the rest after a DEL.
redis.call('DEL', LOCK)
redis.call('SET', RECEIPT, '1', 'PX', receipt_ms)
-- Ignore a refusal: this is only a hint, and some users lack the permission.
redis.pcall('PUBLISH', LOCK, '')
return 1
