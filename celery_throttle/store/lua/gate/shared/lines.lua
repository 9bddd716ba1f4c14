-- Lines: parked tasks in order.
--
-- Those that are alike (the same queue, the same needs) stand in one lane: none of them can start when the
-- first cannot. A lane is named by what they wait for, \0 and the queue; they wait for permits (the text
-- of their needs), for nothing but a slot (''), for the outcome of another task ('follow:' identity ':'
-- that task) or for an identity lock ('next:' identity). A member of KEYS lines is lane \0 place, the
-- ticket if it is another than the place, '.', task id.

local function lane_of(record)
  local lock, what = record.lock, record.needs
  if record.expired then
    what = ''
  elseif lock and lock.verdict == 'follow' then
    what = 'follow:' .. lock.identity .. ':' .. lock.first
  elseif lock and lock.verdict == 'next' then
    what = 'next:' .. lock.identity
  elseif lock and lock.verdict ~= 'run' then
    what = ''
  end
  return what .. '\0' .. record.queue
end

-- What is waited for in a lane, and the queue.
local function parts_of(lane)
  return string.match(lane, '^([^%z]*)%z([^%z]*)$')
end

-- The permits it takes to start a task: none for one that only waits to be told something, or is lent out.
local function takes(record)
  if record.expired or record.lent or record.lock and record.lock.verdict ~= 'run' then return '' end
  return record.needs
end

local function member_of(task, record)
  local places = ordered(record.ticket)
  if record.place and record.place ~= record.ticket then places = ordered(record.place) .. places end
  return lane_of(record) .. '\0' .. places .. '.' .. task
end

-- The first of a lane: { task, place, ticket }, or nil.
local function first_of(lane)
  if state.firsts[lane] then return state.firsts[lane] end
  local found = redis.call('ZRANGEBYLEX', LINES, '[' .. lane .. '\0', '(' .. lane .. '\1', 'LIMIT', 0, 1)[1]
  if not found then return nil end
  local places, task = string.match(string.sub(found, #lane + 2), '^(%d+)%.(.*)$')
  local place, ticket = string.sub(places or '', 1, 16), string.sub(places or '', 17)
  if #place ~= 16 or #ticket % 16 ~= 0 or #ticket > 16 then
    if state.only_reads then return nil end
    redis.call('ZREM', LINES, found) -- it names no task
    return first_of(lane)
  end
  local first = { task = task, place = place, ticket = ticket ~= '' and ticket or place, member = found }
  state.firsts[lane] = first
  return first
end

-- Those alone who wait for permits take a place in a line that may be full.
local function count_waiting(record, by)
  for _, need in ipairs(needs_of(takes(record))) do
    if not add_count(WAITING, USED, 'waiting', need.bucket, by) then -- no number
      drop_unreadable(WAITING, 'waiting', need.bucket, redis.call('HGET', WAITING, need.bucket))
    end
  end
end

-- Set a task in line. Its lane is listed anew if it is the first there now.
local function enqueue(task, record)
  record.nonce, record.since, record.lent = nil, nil, nil
  if record.deadline then redis.call('ZADD', DUE, record.deadline, 'task:' .. task) end
  save_record(task, record)
  local lane, member = lane_of(record), member_of(task, record)
  redis.call('ZADD', LINES, 0, member)
  count_waiting(record, 1)
  state.parked = true
  local known = state.firsts[lane]
  local behind = known and known.place < ordered(record.place or record.ticket)
  if behind or waits_for_lock(lane) then return end
  state.firsts[lane] = nil
  local first = first_of(lane)
  if first and first.member == member then list_lane(lane) end
end

local function leave_line(task, record)
  local lane = lane_of(record)
  local first = first_of(lane)
  local member = member_of(task, record)
  if redis.call('ZREM', LINES, member) == 0 then return end
  if first and first.member == member then state.firsts[lane] = nil end
  count_waiting(record, -1)
  if record.moves then drop_bar(task, record) end
  if record.deadline then redis.call('ZREM', DUE, 'task:' .. task) end
  if not waits_for_lock(lane) and first and first.member == member then list_lane(lane) end
end

-- Whether anybody is parked at all.
local function anybody_waits()
  if state.parked == nil then state.parked = redis.call('EXISTS', LINES) == 1 end
  return state.parked
end

-- A task that may not wait any longer: all that is left is to say so, or nothing for a holder outside of
-- tasks.
local function expire_parked(task, record)
  leave_line(task, record)
  if record.outside then
    return forget_task(task)
  end
  if record.lock then give_up_lock(record.lock.identity, task) end
  record.expired, record.deadline, record.lock = true, nil, nil
  enqueue(task, record)
end
