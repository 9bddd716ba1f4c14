-- Listing: repair of lanes whose entries do not agree with the indexes, and removal of misplaced members.

-- List a lane again by its first task, because its entry is unreadable or wrong.
local function list_again(lane)
  local first, what = first_of(lane), parts_of(lane)
  local entry = state.lanes[lane]
  if entry and entry.at then redis.call('ZREM', OLDEST, oldest_member(lane, entry)) end
  redis.call('HDEL', LANES, lane)
  redis.call('ZREM', DUE, 'lane:' .. lane)
  state.lanes[lane], state.oldest = {}, {}
  if not first or not what then return end
  redis.call('ZREM', READY, (ready_member(lane, first.ticket)))
  redis.call('ZREM', READY, (ready_member(lane, first.ticket, first.place)))
  for _, need in ipairs(needs_of(what)) do
    redis.call('ZREM', HEADS, need.bucket .. '\0' .. first.place .. '\0' .. lane)
    redis.call('ZREM', HEADS, need.bucket .. '\0' .. first.ticket .. '\0' .. lane)
    redis.call('ZREM', OLDEST, limit_of(need.bucket) .. '\0' .. first.ticket .. lane)
    state.heads[need.bucket] = nil
  end
  list_lane(lane)
end

-- Return whether a free slot for the first task of a lane would find the lane.
local function is_findable(lane, entry, first)
  local what = parts_of(lane)
  if not what then return false end
  if entry.ticket then
    local member, _, has_sites = ready_member(lane, entry.ticket, entry.place)
    if not redis.call('ZSCORE', READY, member) then return false end
    for _, head in ipairs(has_sites and changed_site_heads(lane, entry) or {}) do
      if not redis.call('ZSCORE', HEADS, head) then return false end
    end
  end
  if what == '' then return entry.ticket == first.ticket end
  if not entry.at or entry.rank ~= first.place and entry.rank ~= first.ticket then return false end
  if not redis.call('ZSCORE', OLDEST, oldest_member(lane, entry)) then return false end
  if not entry.passed then
    return redis.call('ZSCORE', HEADS, entry.at .. '\0' .. entry.rank .. '\0' .. lane) ~= false
  end
  local again = redis.call('ZSCORE', DUE, 'lane:' .. lane)
  return again and tonumber(again) <= NOW + PASS_MS
end

-- Remove a member of a line that is not the place of a parked task. A parked task without another place is
-- set aside.
local function out_of_line(member, task, record)
  redis.call('ZREM', LINES, member)
  if not record or record.nonce or redis.call('ZSCORE', LINES, member_of(task, record)) then return end
  to_settle('unreadable task', task, packed_record(task), 'not where it says that it stands in line')
end

-- Remove a member of an index that names nothing. lane: where the member stood, in KEYS lines.
local function drop_stray(key, member, lane)
  if redis.call('ZREM', key, member) == 0 then return end -- the member was noted more than once
  if key == HEADS then touch(string.match(member, '^[^%z]*')) end -- a call skips some strays, not all
  if lane and not waits_apart(lane) then list_lane(lane) end
end
