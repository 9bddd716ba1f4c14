-- Fair queueing, by turns: the place in line of a task whose limit serves its keys in turn.
--
-- Start-time fair queueing (Goyal, Vin, Cheng 1996): a place begins where the last one of its key ended, but
-- not before the turn that is served now. A key with more weight has the smaller step.
local TURN_BUCKET, TURN_WHO, TURN_STEP = 1, 2, 3
local TURNS_MS = 3600000

local function keep_turn(field, place)
  redis.call('HSET', TURNS, field, string.format('%.0f', place))
  redis.call('ZADD', ENDS, NOW + TURNS_MS, 'turns:' .. field)
end

-- Return how far the turns are, nil if that is not known. A value beyond the range of places is unreadable.
local function kept_turn(field)
  local kept = redis.call('HGET', TURNS, field)
  local place = kept and tonumber(kept)
  if not kept or place and is_number(place) and place >= 0 then return place end
  note_unreadable(TURNS, 'turns', field, kept)
  return nil
end

local function take_turn(turn, ticket)
  local bucket = turn[TURN_BUCKET]
  local who = bucket .. '\30' .. turn[TURN_WHO]
  local served = kept_turn(bucket) or ticket
  local start = math.max(served, kept_turn(who) or 0)
  keep_turn(bucket, served)
  keep_turn(who, start + turn[TURN_STEP])
  -- Round the place to the 14 digits that cjson keeps, so that a record that is read again has the same
  -- place.
  return tonumber(string.format('%.14g', start))
end

-- Return the turn of a task that brings none: it comes from outside of tasks, or its worker knows of no
-- turns. All such tasks take turns as one key. nil: no limit of the task has turns.
local function turn_for(record)
  for _, need in ipairs(needs_of(record.needs)) do
    local step = rule_of(need.bucket).fair
    if step then return { need.bucket, '', step } end
  end
end

-- Give a task that gets in line for permits its place, unless it goes before all others.
local function give_place(record)
  if record.place or record.ticket <= 0 or takes(record) == '' then return end
  record.turn = record.turn or turn_for(record)
  if record.turn then record.place = take_turn(record.turn, record.ticket) end
end

-- Return the place of a task in the line of a bucket.
local function place_at(bucket, record)
  return rule_of(bucket).fair and record.place or record.ticket
end

local function turn_served(record)
  local bucket = record.turn[TURN_BUCKET]
  if record.place and record.place > (kept_turn(bucket) or 0) then keep_turn(bucket, record.place) end
end

-- No turn was taken here for an hour. While tasks wait for the bucket, keep its turns, except for keys whose
-- turns are all over.
local function turn_lapsed(field)
  local bucket = string.match(field, '^[^\30]*')
  local is_over = field ~= bucket and (kept_turn(field) or 0) <= (kept_turn(bucket) or 0)
  if not is_over and redis.call('HEXISTS', WAITING, bucket) == 1 then
    redis.call('ZADD', ENDS, NOW + TURNS_MS, 'turns:' .. field)
  else
    redis.call('HDEL', TURNS, field)
  end
end
