-- Lines: parked tasks in order; see places.lua.

-- Only tasks that wait for permits take a place in a line that may be full.
local function count_waiting(record, by)
  for _, need in ipairs(needs_of(takes(record))) do
    if not add_count(WAITING, USED, 'waiting', need.bucket, by) then -- not a number
      note_unreadable(WAITING, 'waiting', need.bucket, redis.call('HGET', WAITING, need.bucket))
    end
  end
end

-- Return when the wait of a task ends (ms), after which it does not start.
local function wait_ends(record)
  return math.min(record.deadline or math.huge, record.expires or math.huge)
end

-- Return when a parked task is looked at (ms), as its pause or its wait ends; nil if it has no such time.
local function due_of(record)
  local due = record.expired and math.huge or math.min(record.again or math.huge, wait_ends(record))
  return due < math.huge and due or nil
end

-- Put a task in line. If the task is the first of its lane now, the lane is listed again.
local function enqueue(task, record)
  record.nonce, record.since, record.lent = nil, nil, nil
  if string.find(record.needs, '\29', 1, true) then record.needs = unbound(record.needs) end
  give_place(record)
  local due = (record.again or record.deadline or record.expires) and due_of(record)
  if due then redis.call('ZADD', DUE, due, 'task:' .. task) end
  save_record(task, record)
  local lane, member = lane_of(record), member_of(task, record)
  redis.call('ZADD', LINES, 0, member)
  count_waiting(record, 1)
  state.parked = true
  local known = state.firsts[lane]
  local behind = known and known.place < ordered(record.place or record.ticket)
  if behind or waits_apart(lane) then return end
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
  if record.again or record.deadline or record.expires then redis.call('ZREM', DUE, 'task:' .. task) end
  if not waits_apart(lane) and first and first.member == member then list_lane(lane) end
end

-- Return whether any task is parked.
local function any_parked()
  if state.parked == nil then state.parked = redis.call('EXISTS', LINES) == 1 end
  return state.parked
end
