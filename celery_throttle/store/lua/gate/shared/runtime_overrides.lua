-- Runtime overrides: changes of a limit, or of one key of it, at run time.
--
-- An object with one field for each kind: { value, until (ms, 0: for good), by, why, since (ms) }. Kinds:
--   override  value: permits
--   rate      value: other rates, in the form of a declaration
--   pause, disable
--   hold      an outside service asked to slow down
--   bar       value: a ticket, why: a task id; see anti_starvation.lua
local VALUE, UNTIL, BY, WHY, SINCE = 1, 2, 3, 4, 5

local function anything_said()
  if state.said == nil then state.said = redis.call('EXISTS', SAID) == 1 end
  return state.said
end

local function load_said(bucket)
  return said_in(bucket, redis.call('HGET', SAID, bucket)) or {}
end

-- Return the decoded overrides of a bucket; nil if there are none, or they are unreadable.
local function said_in(bucket, packed)
  if not packed then return nil end
  local said, why = readable(packed, 'spoken')
  if not said then note_unreadable(SAID, 'said', bucket, packed, why) end
  return said
end

-- Store the overrides that have not ended.
local function save_said(bucket, said)
  local till, for_good = 0, false
  for what, one in pairs(said) do
    if one[UNTIL] ~= 0 and one[UNTIL] <= NOW then
      said[what] = nil
    else
      till, for_good = math.max(till, one[UNTIL]), for_good or one[UNTIL] == 0
    end
  end
  if next(said) == nil then
    redis.call('HDEL', SAID, bucket)
    redis.call('ZREM', ENDS, 'said:' .. bucket)
  else
    redis.call('HSET', SAID, bucket, cjson.encode(said))
    if for_good then
      redis.call('ZREM', ENDS, 'said:' .. bucket)
    else
      redis.call('ZADD', ENDS, till, 'said:' .. bucket)
    end
  end
  state.rules, state.said = {}, nil
end

-- Return the first of these overrides of one kind that has not ended. The caller puts those of a key before
-- those of the limit.
local function spoken(several, what)
  for _, said in ipairs(several) do
    local one = said[what]
    if one and (one[UNTIL] == 0 or one[UNTIL] > NOW) then return one end
  end
  return nil
end

local function apply_said(rule, bucket)
  local limit, several = limit_of(bucket), {}
  local of_bucket, of_limit = unpack(redis.call('HMGET', SAID, bucket, limit))
  several[#several + 1] = said_in(bucket, of_bucket)
  if limit ~= bucket then several[#several + 1] = said_in(limit, of_limit) end
  for _, said in ipairs(several) do
    for _, one in pairs(said) do
      local left = one[UNTIL] - NOW
      if left > 0 and (rule.wait_ms == 0 or left < rule.wait_ms) then rule.wait_ms = left end
    end
  end
  local override = spoken(several, 'override')
  if override then rule.permits = override[VALUE] end
  local rate = spoken(several, 'rate')
  -- Without a rate in the code, workers pass permits on by themselves until a reply closes the bucket.
  rule.newly_paced = rate ~= nil and not rule.rates
  if rate then rule.rates = rate[VALUE] end
  rule.bar = spoken(several, 'bar')
  if spoken(several, 'disable') then rule.permits, rule.rates, rule.bar = ANY_NUMBER, nil, nil end
  rule.closed = (spoken(several, 'pause') or spoken(several, 'hold')) ~= nil
end

-- An outside service asked to slow down: no task starts for so long.
local function hold_back(bucket, pause_ms, by)
  local said = load_said(bucket)
  if not said.hold or said.hold[UNTIL] < NOW + pause_ms then
    said.hold = { 0, NOW + pause_ms, by, 'rate limited', NOW }
    save_said(bucket, said)
  end
  touch(bucket)
end

local function said_lapsed(bucket)
  save_said(bucket, load_said(bucket))
  touch(bucket)
end
