-- Runtime overrides: changes of a limit, or of one key of it, at run time.
--
-- An object with one field for each kind: { value, until (ms, 0: for good), by, why, since (ms) }. Kinds:
--   override  value: permits
--   rate      value: other rates, in the form of a declaration
--   pause, disable
--   hold      an outside service asked to slow down
--   bar       value: a place, why: a task id; see anti_starvation.lua
local VALUE, UNTIL, BY, WHY, SINCE = 1, 2, 3, 4, 5

local function any_override()
  if state.overridden == nil then state.overridden = redis.call('EXISTS', OVERRIDES) == 1 end
  return state.overridden
end

local function load_overrides(bucket)
  return overrides_in(bucket, redis.call('HGET', OVERRIDES, bucket)) or {}
end

-- Return the decoded overrides of a bucket; nil if there are none, or they are unreadable.
local function overrides_in(bucket, packed)
  if not packed then return nil end
  local overrides, why = readable(packed, 'overrides')
  if not overrides then note_unreadable(OVERRIDES, 'overrides', bucket, packed, why) end
  return overrides
end

-- Store the overrides that have not ended.
local function save_overrides(bucket, overrides)
  local till, for_good = 0, false
  for what, one in pairs(overrides) do
    if one[UNTIL] ~= 0 and one[UNTIL] <= NOW then
      overrides[what] = nil
    else
      till, for_good = math.max(till, one[UNTIL]), for_good or one[UNTIL] == 0
    end
  end
  if next(overrides) == nil then
    redis.call('HDEL', OVERRIDES, bucket)
    redis.call('ZREM', ENDS, 'overrides:' .. bucket)
  else
    redis.call('HSET', OVERRIDES, bucket, cjson.encode(overrides))
    if for_good then
      redis.call('ZREM', ENDS, 'overrides:' .. bucket)
    else
      redis.call('ZADD', ENDS, till, 'overrides:' .. bucket)
    end
  end
  state.rules, state.overridden = {}, nil
end

-- Return the first of these overrides of one kind that has not ended. The caller puts those of a key before
-- those of the limit.
local function in_force(several, what)
  for _, overrides in ipairs(several) do
    local one = overrides[what]
    if one and (one[UNTIL] == 0 or one[UNTIL] > NOW) then return one end
  end
  return nil
end

local function apply_overrides(rule, bucket)
  local limit, several = limit_of(bucket), {}
  local of_bucket, of_limit = unpack(redis.call('HMGET', OVERRIDES, bucket, limit))
  several[#several + 1] = overrides_in(bucket, of_bucket)
  if limit ~= bucket then several[#several + 1] = overrides_in(limit, of_limit) end
  for _, overrides in ipairs(several) do
    for _, one in pairs(overrides) do
      local left = one[UNTIL] - NOW
      if left > 0 and (rule.wait_ms == 0 or left < rule.wait_ms) then rule.wait_ms = left end
    end
  end
  local override = in_force(several, 'override')
  if override then rule.permits = override[VALUE] end
  local rate = in_force(several, 'rate')
  -- Without a rate in the code, workers pass permits on by themselves until a reply closes the bucket.
  rule.newly_paced = rate ~= nil and not rule.rates
  if rate then rule.rates = rate[VALUE] end
  rule.bar = in_force(several, 'bar')
  if in_force(several, 'disable') then rule.permits, rule.rates, rule.bar = ANY_NUMBER, nil, nil end
  rule.closed = (in_force(several, 'pause') or in_force(several, 'hold')) ~= nil
end

-- An outside service asked to slow down: no task starts for so long.
local function hold_back(bucket, pause_ms, by)
  local overrides = load_overrides(bucket)
  if not overrides.hold or overrides.hold[UNTIL] < NOW + pause_ms then
    overrides.hold = { 0, NOW + pause_ms, by, 'rate limited', NOW }
    save_overrides(bucket, overrides)
  end
  touch(bucket)
end

-- The time of some overrides is over. Each bucket with a line is due at that time, see room_for.
local function override_lapsed(bucket)
  save_overrides(bucket, load_overrides(bucket))
end
