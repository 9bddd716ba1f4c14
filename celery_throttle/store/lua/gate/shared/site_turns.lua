-- Site turns: the line of an open bucket is one for all sites and all queues. A site with room goes to the
-- first lane there that could start on the site, also if another worker has to start it.
--
-- Such a lane has a moment at the site. If the site has room at the end of the moment, all lanes of that
-- section are passed over at this site for a while, because no worker of the site seems to take their tasks.
-- Both stand in KEYS due, as 'moment:' and 'passed:', a bucket of a site, \0 and a section.
local LANES_MOST, LOOKS_MOST = 100, 20

-- Return whether a time in KEYS due is one that this file has set; it ends later than it can after the clock
-- of the store went back.
local function is_set(kind, turn, most_ms)
  local till = redis.call('ZSCORE', DUE, kind .. turn)
  return till and tonumber(till) <= NOW + most_ms
end

-- Give a section its moment at a site, if it has none.
local function give_moment(bucket, turn)
  if is_set('moment:', turn, OFFER_MS) then return end
  redis.call('ZADD', DUE, NOW + OFFER_MS, 'moment:' .. turn)
  note_freed(bucket)
end

-- The moment of a section is over. It was in vain if other tasks have taken the room.
local function moment_over(turn)
  local bucket = string.match(turn, '^[^%z]*')
  if not room_for({ bucket = bucket, cost = 1 }) then return end
  redis.call('ZADD', DUE, NOW + PASS_MS, 'passed:' .. turn)
  touch(bucket)
end

-- A worker of a site starts a task: the section has its turns there again.
local function take_turns_back(lane, needs)
  for _, need in ipairs(needs) do
    if site_of(need.bucket) then
      local turn = need.bucket .. '\0' .. section_of(lane)
      redis.call('ZREM', DUE, 'moment:' .. turn, 'passed:' .. turn)
    end
  end
end

-- Return whether the first task of a lane lacks more than a worker and permits of this site, and whether the
-- lane has left the line of the site for that.
local function lacks_more(lane, bucket)
  local entry, first = load_lane(lane), first_of(lane)
  local record = first and load_record(first.task)
  if not record or record.nonce then return true, false end
  for _, need in ipairs(needs_of(bound(takes(record)))) do
    if not site_of(need.bucket) then
      local is_blocked, wait_ms = blocked_at(need, first.task, record)
      if is_blocked and wait_ms > 0 then again_at(need.bucket, NOW + wait_ms) end
      if is_blocked and not entry.passed then move_lane(lane, entry, need.bucket, first, record) end
      if is_blocked then return true, not entry.passed end
    elseif need.bucket ~= bucket and not is_open(need.bucket) and not room_for(need) then
      return true, false
    end
  end
  return false, false
end

-- Return the lanes before a place in the line of an open bucket: { lane, its needs, its queue } each.
local function lanes_before(open, place)
  local _, first_place = first_at(open)
  if not first_place or first_place >= place then return {} end
  local from, last = '[' .. open .. '\0', '(' .. open .. '\0' .. place
  local lanes = {}
  for _, member in ipairs(redis.call('ZRANGEBYLEX', HEADS, from, last, 'LIMIT', 0, LANES_MOST)) do
    local lane = string.sub(member, #open + 19)
    local what, queue = parts_of(lane)
    if what then lanes[#lanes + 1] = { lane, what, queue } end
  end
  return lanes
end

-- Return whether a lane may have a turn at a site. Its section may be passed over there; and if the caller
-- alone is the site, the caller has to serve its queue.
local function may_come(lane, queue, bucket, known)
  if string.find(bucket, '\29worker=', 1, true) and not state.serves[queue] then return false end
  local turn = bucket .. '\0' .. section_of(lane)
  if known[turn] == nil then known[turn] = is_set('passed:', turn, PASS_MS) or false end
  known.passing = known.passing or known[turn]
  return not known[turn]
end

-- Give the room of a site to the first lane before a place in its line. Returns that lane, and whether the
-- caller can start it; nil if there is none. Returns any lane if there are too many to look at in one call.
local function give_turn(bucket, place)
  local turn, moved, known, looks = nil, nil, {}, LOOKS_MOST
  for _, each in ipairs(lanes_before(unbound(bucket), place)) do
    local lane, what, queue = unpack(each)
    local lacks, has_moved = true, false
    if may_come(lane, queue, bucket, known) then
      looks = looks - 1
      lacks, has_moved = lacks_more(lane, bucket)
    end
    if not lacks then
      if not room_for(need_of(bound(what), bucket)) then return turn or lane, false end
      if is_for_caller(lane) then return turn or lane, not turn end
      if not string.find(bucket, '\29worker=', 1, true) then
        give_moment(bucket, bucket .. '\0' .. section_of(lane))
        turn = turn or lane
      end
      -- If a section was passed over, all others have their moment at once, because many idle queues in turn
      -- would take long.
      if turn and not known.passing then return turn, false end
    end
    moved = moved or has_moved and lane
    if looks == 0 then break end
  end
  if looks == 0 and moved then again_at(bucket, NOW) end -- and then there are fewer of them
  return turn or looks == 0 and moved or nil, false
end
