-- Book the first start that the rates of a limit allow, for later.
-- KEYS, ARGV[1] as in shared/begin.lua; then bucket, the declaration of its limit, cost, longest wait (us).
-- Returns { start (us), now (us) }, or nil if the limit has no rate. If the wait would be too long, the start
-- is before now, and nothing is booked.
local bucket, declared, cost, longest = argument(), argument(), number(), number()
redis.call('HSETNX', LIMITS, limit_of(bucket), declared)
local rule = rule_of(bucket)
if not rule.rates then return false end
local loaded = load_rates(bucket, rule, cost)
local start = math.max(allowed_at(loaded, false), NOW_US)
if start - NOW_US > longest then return { NOW_US - 1, NOW_US } end
book_at(bucket, loaded, start)
serve()
return { start, NOW_US }
