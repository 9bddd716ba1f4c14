-- Checks: comparing the indexes with the records. An entry that does not agree with the records is built
-- again.

local function check_lane(lane)
  if waits_apart(lane) then return end
  local first = first_of(lane)
  if not first or is_findable(lane, load_lane(lane), first) then return end
  note_wrong('lanes', lane, 'not listed where it says')
  if not state.only_reads then list_again(lane) end
end

-- Check that a holder has a lease, and a parked task its place. Without a lease a holder would never be
-- reclaimed, and without a place a parked task would never start.
local function check_record(task)
  local record = load_record(task)
  if not record then return end
  if record.nonce then
    local till = tonumber(redis.call('ZSCORE', LEASES, task) or math.huge)
    if till <= NOW + math.max(LEASE_MS, KEPT_MS) then return end
    note_wrong('leases', task, 'no lease, or one that would last for ever')
    if not state.only_reads then redis.call('ZADD', LEASES, NOW + LEASE_MS, task) end
    return
  end
  if redis.call('ZSCORE', LINES, member_of(task, record)) then return end
  note_wrong('lines', task, 'not where it says that it stands in line')
  if state.only_reads then return end
  count_waiting(record, -1) -- enqueue counts the task again
  enqueue(task, record)
end

-- Members are in the order of their names only while all scores are 0.
local function check_scores(key, name)
  for _, range in ipairs({ { '-inf', '(0' }, { '(0', '+inf' } }) do
    local from, last = unpack(range)
    for _, member in ipairs(redis.call('ZRANGEBYSCORE', key, from, last, 'LIMIT', 0, 100)) do
      note_wrong(name, member, 'out of order')
      if not state.only_reads then redis.call('ZADD', key, 0, member) end
    end
  end
end

local function check_order()
  check_scores(LINES, 'lines')
  check_scores(HEADS, 'heads')
  check_scores(READY, 'ready')
  check_scores(OLDEST, 'oldest')
end

-- Check a random part of the data; where there is little, that is all.
local function check_some(most)
  check_order()
  for _, task in ipairs(redis.call('HRANDFIELD', RECORDS, most) or {}) do check_record(task) end
  for _, member in ipairs(redis.call('ZRANDMEMBER', LINES, most) or {}) do
    check_member(member)
  end
  for _, member in ipairs(redis.call('ZRANDMEMBER', OLDEST, most) or {}) do check_oldest(member) end
end

local function check_oldest(member)
  local lane = string.match(member, '^[^%z]*%z' .. string.rep('%d', 16) .. '(.*)$')
  local entry = lane and parts_of(lane) and load_lane(lane)
  if entry and entry.at and oldest_member(lane, entry) == member then return end
  note_wrong('oldest', member, 'the place of no lane')
  if not state.only_reads then redis.call('ZREM', OLDEST, member) end
end

local function check_member(member)
  local lane, task = string.match(member, '^([^%z]*%z[^%z]*)%z%d+%.(.*)$')
  local record = lane and load_record(task)
  if record and not record.nonce and member_of(task, record) == member then return check_lane(lane) end
  note_wrong('lines', member, 'the place of no task')
  if state.only_reads then return end
  redis.call('ZREM', LINES, member)
  if lane then
    state.firsts[lane] = nil
    -- The task was counted when it was parked.
    local unreadable = not record and not readable(redis.call('HGET', RECORDS, task) or '{"v":2}', 'record')
    local counted = string.match(lane, '^%d') and (unreadable or redis.call('HEXISTS', ASIDE, task) == 1)
    if counted then count_waiting({ needs = parts_of(lane) }, -1) end
    if not waits_apart(lane) then list_lane(lane) end
  end
end
