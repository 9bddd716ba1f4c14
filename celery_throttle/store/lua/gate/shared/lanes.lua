-- Lanes: where each lane is listed, so that a free slot finds the oldest startable task at once.
--
-- KEYS lanes: an object of
--   at        the bucket whose permits the first task lacks (or is to get next)
--   rank      the place of that task in the line of the bucket
--   came      its ticket, if that is not the rank
--   ticket    its ticket in KEYS ready, if the lane is there
--   place     of open needs: its place there, if that is not the ticket
--   offered   until when its queue has the time to take its turn (ms)
--   passed    true while the lane is passed over, because its queue did not
-- A lane is in KEYS heads at one bucket, unless it is passed over. A lane is in KEYS ready while nothing is
-- known to keep its first task from starting.

local function load_lane(lane)
  local entry = state.lanes[lane]
  if not entry then
    local packed = redis.call('HGET', LANES, lane)
    entry = packed and readable(packed, 'lane')
    local complete = entry and (entry.at and entry.rank or not entry.at and string.byte(lane) == 0)
    state.lanes[lane] = complete and entry or {}
    if packed and not complete then note_unreadable(LANES, 'lanes', lane, packed) end
    entry = state.lanes[lane]
  end
  return entry
end

local function save_lane(lane, entry)
  state.lanes[lane] = entry
  redis.call('HSET', LANES, lane, cjson.encode(entry))
end

-- Return the member of KEYS oldest for a lane, which is there while the lane is listed or passed over.
local function oldest_member(lane, entry)
  return limit_of(entry.at) .. '\0' .. (entry.came or entry.rank) .. lane
end

-- Return the member of KEYS heads for a lane, to add or remove it: then another lane may be first.
local function changed_head(lane, entry)
  state.heads[entry.at] = nil
  return entry.at .. '\0' .. entry.rank .. '\0' .. lane
end

local function unlist(lane, entry)
  if entry.at then redis.call('ZREM', OLDEST, oldest_member(lane, entry)) end
  local has_head = entry.at and not entry.passed and not string.find(entry.at, '\29', 1, true)
  if has_head then redis.call('ZREM', HEADS, changed_head(lane, entry)) end
  unready(lane, entry)
end

-- List a lane again: its first task is another one, or the lane is empty.
local function list_lane(lane)
  local entry, first = load_lane(lane), first_of(lane)
  local what, queue = parts_of(lane)
  local was_ready = entry.ticket ~= nil
  state.hot[lane] = nil
  if was_ready then state.was_ready[(entry.at or '') .. '\0' .. queue] = true end
  unlist(lane, entry)
  entry.offered = nil
  if not first then
    redis.call('HDEL', LANES, lane)
    state.lanes[lane] = nil
    if entry.passed then redis.call('ZREM', DUE, 'lane:' .. lane) end
    state.parked = redis.call('EXISTS', LINES) == 1
    if not state.parked then redis.call('DEL', DUE) end
    touch(entry.at)
    return
  end
  if what == '' then
    make_ready(lane, entry, first)
    save_lane(lane, entry)
    return
  end
  list_at(lane, entry, entry.at or needs_of(what)[1].bucket, first)
  if was_ready and entry.passed then
    make_ready(lane, entry, first)
    save_lane(lane, entry)
  end
end

local function list_at(lane, entry, bucket, first)
  local is_new = entry.at ~= bucket
  if is_new then
    touch(entry.at)
    entry.offered = nil
  end
  entry.at = bucket
  if is_new and not entry.passed and not first_at(bucket) then state.began[bucket] = true end
  if string.find(bucket, '\29', 1, true) then
    make_ready(lane, entry, first)
    entry.rank = entry.place or entry.ticket
  else
    entry.rank = rule_of(bucket).fair and first.place or first.ticket
    if not entry.passed then redis.call('ZADD', HEADS, 0, changed_head(lane, entry)) end
  end
  entry.came = entry.rank ~= first.ticket and first.ticket or nil
  redis.call('ZADD', OLDEST, 0, oldest_member(lane, entry))
  save_lane(lane, entry)
  touch(bucket)
end

-- Return the first lane at a bucket, or the next after a member: lane, rank, member; nil if there is none.
local function first_at(bucket, after)
  local found = not after and state.heads[bucket]
  local from = after and '(' .. after or '[' .. bucket .. '\0'
  for _ = 1, STRAYS_MOST do
    found = found or redis.call('ZRANGEBYLEX', HEADS, from, '(' .. bucket .. '\1', 'LIMIT', 0, 1)[1] or ''
    if found == '' then break end
    local lane, rank = string.sub(found, #bucket + 19), string.sub(found, #bucket + 2, #bucket + 17)
    if is_a(rank, 'rank') and parts_of(lane) then
      if not after then state.heads[bucket] = found end
      return lane, rank, found
    end
    to_settle('stray', HEADS, found)
    from, found = '(' .. found, nil
  end
  if not after and found then state.heads[bucket] = '' end -- else there may be more after the strays
end

-- How many members that name nothing are skipped; settling removes them.
local STRAYS_MOST = 8
