-- Give a permit back, or leave the line, and hand over what is free; any other permit is left as it is.
-- KEYS[1] to KEYS[6], ARGV[1], ARGV[2] as in permits.lua
-- KEYS[7] receipt  STRING  '1' for a while after this script took the permit back, so that the same call,
--                          sent again because its reply was lost, gets the same answer
-- ARGV[3] how long the receipt lasts (ms)
-- Returns 1: given back, by this call or by the same call before, 0: it was neither held nor waited for.
local RECEIPT = KEYS[7]
local receipt_ms = ARGV[3]

-- A removal goes first: after it a server that is out of memory lets the rest pass.
if free(permit) == 0 and leave_line(permit) == 0 then return redis.call('EXISTS', RECEIPT) end
redis.call('SET', RECEIPT, '1', 'PX', receipt_ms)
reap()
hand_over(limit_now())
return 1
