-- Give a permit back, or leave the line, then grant the free permits; other permits stay.
-- KEYS[1] to KEYS[6], ARGV[1], ARGV[2] as in permits.lua
-- KEYS[7] receipt  STRING  '1' for a while after this script took the permit back, so that a call repeated
--                          after a lost reply gets the same answer
-- ARGV[3] how long the receipt lasts (ms)
-- Returns 1: given back, by this call or by an earlier copy of it, 0: the permit was neither held nor
-- awaited.
local RECEIPT = KEYS[7]
local receipt_ms = ARGV[3]

-- A removal goes first, because a server that is out of memory allows the rest after a removal.
if free(permit) == 0 and leave_line(permit) == 0 then return redis.call('EXISTS', RECEIPT) end
redis.call('SET', RECEIPT, '1', 'PX', receipt_ms)
reap()
hand_over(limit_now())
return 1
