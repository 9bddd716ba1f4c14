-- Permits: how many a bucket has, whether there is room, taking and giving them back.
--
-- A limit is declared as its number of permits, or as an object: permits (0: any number), rates: { count,
-- period (us), burst } each, max_parked (0: any number), fair (its tasks take turns).
local ANY_NUMBER, SETTLE_MS, SETTLE_MOST_MS = 1000000000, 4000, 300000

-- What governs a bucket now: permits, used, rates, max_parked, fair; newly_paced: it has a rate by an
-- override alone; closed: nothing may start; bar: see anti_starvation.lua; wait_ms: after how long that may
-- change by itself (0: never).
local function rule_of(bucket)
  local rule = state.rules[bucket]
  if rule then return rule end
  rule = declared_of(limit_of(bucket))
  if rule.rates and rule.permits == 0 then rule.permits = ANY_NUMBER end
  rule.wait_ms, rule.used = 0, held_of(bucket)
  state.rules[bucket] = rule
  if anything_said() then apply_said(rule, bucket) end
  local settling_ms = settling()
  if settling_ms > 0 then rule.closed, rule.wait_ms = true, settling_ms end
  return rule
end

-- How long nothing is granted yet, since holders may still have to put themselves back: 0 but for the
-- seconds after the data was lost. Who only reads asks, too: that it is over is written by whoever starts.
local function settling()
  if not state.settling then
    local till = meta_number('settling', NOW + SETTLE_MOST_MS)
    state.settled, state.settling = till <= NOW, math.max(till - NOW, 0)
  end
  return state.settling
end

-- Whether so many permits are free; one that takes more than there are runs alone.
local function has_permits(rule, cost)
  return rule.permits - rule.used >= math.min(cost, math.max(rule.permits, 1))
end

-- Whether nothing can start, whatever it takes, until a permit is given back or something is said.
local function is_full(rule)
  return not has_permits(rule, 1) and rule.wait_ms == 0
end

-- Whether so many permits are free and the rates allow the start, and if not, after how long (ms) to look
-- again, though nobody gives one back (0: no need).
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

-- Whether it fits, whatever the rates are and whoever waits: it has started already. Of a limit that was not
-- declared since the data was lost nobody else can have got any.
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
  -- Else it is no number, and is counted anew when this is settled.
  rule.used = used or math.max(rule.used + by, 0)
end

-- starts: the nonce it starts with; nil for one that only comes back, which had its start before.
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
