-- Reading: functions that status, holders, parked and explain share. None of them writes.
local LONGEST_HEAD, LONGEST_MESSAGE = 16384, 1048576

-- Return the overrides of a bucket as JSON that readers outside of Lua can decode; '' if there are none, or
-- they are unreadable.
local function overrides_text(bucket, packed)
  local overrides = overrides_in(bucket, packed)
  return overrides and cjson.encode(overrides) or ''
end

local function declared_text(limit)
  local declared = redis.call('HGET', LIMITS, limit) or ''
  if is_digits(declared) then return declared end
  local rule = readable(declared, 'rule')
  return rule and cjson.encode(rule) or ''
end

-- Return the state of a bucket: { bucket, declared, overrides of its limit, overrides of the bucket (as in
-- KEYS limits and overrides; '' if there are none), permits (-1: any number), held, waiting, ms until the
-- rates allow a start }. A limit with keys in use also has { keys, held, waiting } of all keys (sums.lua).
local function standing(bucket)
  local limit, rule = limit_of(bucket), rule_of(bucket)
  local of_limit, of_bucket = '', ''
  if any_override() then
    local overrides = redis.call('HMGET', OVERRIDES, limit, bucket)
    of_limit = overrides_text(limit, overrides[1])
    of_bucket = limit ~= bucket and overrides_text(bucket, overrides[2]) or ''
  end
  local row = {
    bucket, declared_text(limit), of_limit, of_bucket, rule.permits < ANY_NUMBER and rule.permits or -1,
    rule.used, counted_in(WAITING, 'waiting', bucket), rule.rates and rate_wait_ms(bucket, rule, 1) or 0,
  }
  local keys = limit == bucket and sum_of('keys', limit) or 0
  if keys > 0 then
    for _, sum in ipairs({ keys, sum_of('used', limit), sum_of('waiting', limit) }) do row[#row + 1] = sum end
  end
  return row
end

-- Return the head of a parked message (see store/parcel.py), which has the name of the task; '' if the head
-- or the message is too large.
local function head_of(task)
  if redis.call('HSTRLEN', MESSAGES, task) > LONGEST_MESSAGE then return '' end
  local length, head = string.match(redis.call('HGET', MESSAGES, task) or '', '^(%d+)\n(.*)')
  return length and tonumber(length) <= LONGEST_HEAD and string.sub(head, 1, tonumber(length)) or ''
end

-- Return the lanes that wait for a bucket, also those passed over: { lane, queue, passed: until when (ms) or
-- 0 } each. A script with many buckets reads the passed lanes once, and passes in those of this bucket.
local function lanes_at(bucket, most, passed)
  local lanes, lane, _, member = {}, first_at(bucket)
  while lane and #lanes < most do
    local _, queue = parts_of(lane)
    lanes[#lanes + 1] = { lane = lane, queue = queue, passed = 0 }
    lane, _, member = first_at(bucket, member)
  end
  for _, each in ipairs(passed or passed_lanes(most)) do
    if passed or load_lane(each.lane).at == bucket then lanes[#lanes + 1] = each end
  end
  return lanes
end

-- Return the lanes that are passed over, in the order in which their turns come again.
local function passed_lanes(most)
  local lanes, due = {}, redis.call('ZRANGE', DUE, 0, 9999, 'WITHSCORES')
  for i = 1, #due, 2 do
    local lane = string.match(due[i], '^lane:(.*)$')
    local _, queue = parts_of(lane or '')
    if queue and #lanes < most then
      lanes[#lanes + 1] = { lane = lane, queue = queue, passed = tonumber(due[i + 1]) }
    end
  end
  return lanes
end

-- Return a page of the names that members of a sorted set begin with, up to \0.
local function names_from(key, from, last, most)
  local names = {}
  while #names < most do
    local found = redis.call('ZRANGEBYLEX', key, from, last, 'LIMIT', 0, 1)[1]
    if not found then break end
    names[#names + 1] = string.match(found, '^[^%z]*')
    from = '(' .. names[#names] .. '\1'
  end
  return names
end

-- Return a time that is kept as a score, within the range that readers can show.
local function till_of(score)
  return math.max(math.min(tonumber(score), LATEST_MS), 0)
end
