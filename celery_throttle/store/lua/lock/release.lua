-- End one grant of an identity lock and wake those who wait for it; any other grant is left as it is.
-- KEYS[1] lock     STRING  as in grant.lua
-- KEYS[2] receipt  STRING  '1' for a while after this script ended the grant, so that the same call, sent
--                          again because its reply was lost, gets the same answer
-- ARGV[1] fencing token of the grant; '': whichever its owner has
-- ARGV[2] its owner; '': whoever it is
-- ARGV[3] how long the receipt lasts (ms)
-- Returns 1: ended, by this call or by the same call before, 0: there is no such grant.
local RECEIPT = KEYS[2]
local token, owner, receipt_ms = ARGV[1], ARGV[2], ARGV[3]

local held_token, _, holder = present_grant()
local is_meant = held_token and (token == '' or token == held_token) and (owner == '' or owner == holder)
if not is_meant then return redis.call('EXISTS', RECEIPT) end
-- The DEL goes first: after it a server that is out of memory lets the rest pass.
redis.call('DEL', LOCK)
redis.call('SET', RECEIPT, '1', 'PX', receipt_ms)
-- Only a hint, and some users may not publish.
redis.pcall('PUBLISH', LOCK, '')
return 1
