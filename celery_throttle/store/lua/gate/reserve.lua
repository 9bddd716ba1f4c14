-- Book the first start that the rates of a limit allow, for later.
-- KEYS, ARGV[1..4] as in common.lua (slots 0, no queues); then limit, what is declared of it, cost, longest wait (us).
-- Returns { start (us), now (us) }; the start is before now if it is later than the longest wait, and then nothing is booked;
-- nil if the limit has no rate.
local limit, said, cost, longest = argument(), argument(), tonumber(argument()), tonumber(argument())
open_rules()
declare_limit(limit, said)
permits_of(limit)
local rule = rules[limit]
if not rule or not rule.rates then return false end
return reserve_start(limit, rule, cost, longest)
