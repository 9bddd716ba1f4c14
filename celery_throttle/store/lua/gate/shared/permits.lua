-- Permits: how many a bucket has, whether there is room, taking and giving them back.
--
-- The declaration of a limit is its number of permits, or an object:
--   permits     0: any number
--   rates       { count, period (us), burst } each
--   max_parked  0: any number
--   fair        its tasks take turns: the step of one turn, at weight 1
--   per         'host', 'worker' or a tag: the permits are those of each site
--   share       of the pool of each worker
local ANY_NUMBER, SETTLE_MS, SETTLE_MOST_MS = 1000000000, 4000, 300000

-- Return the rule that holds for a bucket now:
--   permits, used, rates, max_parked, fair
--   newly_paced  only an override gives it a rate
--   closed       no task may start
--   bar          see anti_starvation.lua
--   wait_ms      after how long the rule may change by itself (0: never)
local function rule_of(bucket)
  local rule = state.rules[bucket]
  if rule then return rule end
  rule = declared_of(limit_of(bucket))
  if rule.rates and rule.permits == 0 then rule.permits = ANY_NUMBER end
  if rule.share then rule.permits = permits_of_share(rule.share, bucket) end
  rule.wait_ms, rule.used = 0, held_of(bucket)
  state.rules[bucket] = rule
  if any_override() then apply_overrides(rule, bucket) end
  local settling_ms = settling()
  if settling_ms > 0 then rule.closed, rule.wait_ms = true, settling_ms end
  return rule
end

-- Return for how long (ms) nothing is granted yet: not 0 only in the seconds after a loss of data, in which
-- holders put themselves back. Readers may call this; the flag in META is cleared by the next start.
local function settling()
  if not state.settling then
    local till = meta_number('settling', NOW + SETTLE_MOST_MS)
    state.settled, state.settling = till <= NOW, math.max(till - NOW, 0)
  end
  return state.settling
end

-- Return whether so many permits are free. A task that takes more than there are runs alone.
local function has_permits(rule, cost)
  return rule.permits - rule.used >= math.min(cost, math.max(rule.permits, 1))
end

-- Return whether no task can start, at any cost, until a permit is given back or an override changes.
local function is_full(rule)
  return not has_permits(rule, 1) and rule.wait_ms == 0
end

-- Return whether so many permits are free and the rates allow a start. If not, also return after how long
-- (ms) to look again (0: no need).
local function room_for(need)
  local rule = rule_of(need.bucket)
  if rule.closed or not has_permits(rule, need.cost) then return false, rule.wait_ms end
  if rule.rates and not need.booked then
    local wait_ms, was_set_back = rate_wait_ms(need.bucket, rule, need.cost)
    if wait_ms > 0 and was_set_back then to_settle('clock', need.bucket) end
    if wait_ms > 0 and rule.wait_ms > 0 then wait_ms = math.min(wait_ms, rule.wait_ms) end
    if wait_ms > 0 then return false, wait_ms end
  end
  return true, 0
end

-- Return whether needs that have started already fit, regardless of rates and lines. A limit without a
-- declaration since a loss of data always has room, because no other task can have its permits.
local function fits(needs)
  for _, need in ipairs(needs) do
    local room = has_permits(rule_of(need.bucket), need.cost)
    if not room and redis.call('HEXISTS', LIMITS, limit_of(need.bucket)) == 1 then return false end
  end
  return true
end

local function change_used(need, by)
  local rule = rule_of(need.bucket)
  local used = add_count(USED, WAITING, 'used', need.bucket, by)
  -- A count that is not a number is counted again when this is settled.
  rule.used = used or math.max(rule.used + by, 0)
end

-- starts: the nonce of a task that starts; nil for a holder that comes back, whose start was booked before.
local function take(needs, starts, waited)
  for _, need in ipairs(needs) do
    change_used(need, need.cost)
    local rule = rule_of(need.bucket)
    local books = starts and rule.rates and not need.booked
    if books then book_start(need.bucket, rule, need.cost, waited, starts) end
  end
end

local function give(needs)
  for _, need in ipairs(needs) do
    change_used(need, -need.cost)
    touch(need.bucket)
  end
end
