-- Starting: the caller's slots go to the oldest tasks that can start in them, whatever they wait for.

-- What one call may start: 2 for each task, and 1 for each limit that it needs.
local MOST_WORK = 22

-- The lane with the oldest task that can start in a slot of the caller.
local function oldest_ready()
  local oldest, oldest_ticket, listed
  for _, queue in ipairs(state.queues) do
    local from, last = '[' .. queue .. '\0', '(' .. queue .. '\1'
    local found = state.oldest[queue] or redis.call('ZRANGEBYLEX', READY, from, last, 'LIMIT', 0, 1)[1] or ''
    state.oldest[queue] = found
    local ticket = string.sub(found, #queue + 2, #queue + 17)
    if found ~= '' and (not oldest or ticket < oldest_ticket) then
      oldest, oldest_ticket, listed = string.sub(found, #queue + 18), ticket, found
    end
  end
  return oldest, oldest_ticket, listed
end

-- The first bucket that keeps a task from starting, if one does: also that where its lane is listed, since
-- another may have come before it there after it was made ready.
local function blocked_by(needs, task, record)
  for _, need in ipairs(needs) do
    local bucket = need.bucket
    local room, wait_ms = room_for(need)
    if wait_ms > 0 then again_at(bucket, NOW + wait_ms) end
    if not room or barred(bucket, task, record.ticket) then return bucket end
    local _, rank = first_at(bucket)
    local own = rule_of(bucket).fair and record.place or record.ticket
    -- Those who wait for a rate alone are not before one that has its start.
    local has_start = need.booked and rule_of(bucket).permits == ANY_NUMBER
    if rank and rank < ordered(own) and not has_start then return bucket end
  end
  return nil
end

-- Its first task waits for another bucket: that is where the lane is listed from now on.
local function move_lane(lane, entry, bucket, first, record)
  local moves = bucket ~= entry.at
  unlist(lane, entry)
  list_at(lane, entry, bucket, first)
  if not moves then return end
  record.moves = (record.moves or 0) + 1
  save_record(first.task, record)
  if record.moves >= MANY_MOVES then raise_bar(first.task, record) end
end

-- Start the first task of a lane that is ready, or find out why it cannot.
local function start_first(lane)
  local entry, first = load_lane(lane), first_of(lane)
  local record = first and load_record(first.task)
  if not record or record.nonce or member_of(first.task, record) ~= first.member then
    -- Nothing can be said of a record that is unreadable, or that another release has changed.
    if first then out_of_line(first.member, first.task, record) end
    state.firsts[lane] = nil
    if first then count_waiting({ needs = string.match(lane, '^%d') and parts_of(lane) or '' }, -1) end
    list_lane(lane)
    return
  end
  if record.deadline and record.deadline <= NOW then return expire_parked(first.task, record) end
  if entry.passed then take_back(lane, entry, true) end
  local blocker = blocked_by(needs_of(takes(record)), first.task, record)
  if blocker then return move_lane(lane, entry, blocker, first, record) end
  leave_line(first.task, record)
  if record.lock and not lock_allows(first.task, record) then return enqueue(first.task, record) end
  if record.turn and record.ticket > 0 then turn_served(record) end
  hold(first.task, record, state.holder .. ':' .. state.call .. '.' .. #state.grants, true)
  state.slots = state.slots - 1
  state.grants[#state.grants + 1] = first.task
end

-- Give the caller's slots to those whose turn it is, and hint to others.
local function serve()
  if not anybody_waits() then return end
  settle_touched()
  local left = MOST_WORK
  -- Also a task without limits waits until a store that was emptied has settled: it may run elsewhere.
  state.all_served = settling() > 0
  while state.slots > 0 and left > 0 and not state.all_served do
    local lane, listed = oldest_startable()
    if not lane then
      state.all_served = true
      break
    end
    state.hot[lane] = nil
    left = left - 2 - #needs_of(parts_of(lane) or '')
    if is_listed(lane, listed) then start_first(lane) end
    settle_touched()
  end
  cool_down()
  for _, bucket in ipairs(state.touched) do again_at(bucket, NOW) end
  hint_ready()
end

-- The lane with the oldest task that can start here: of those that are ready for anybody, and those that
-- became ready in this call.
local function oldest_startable()
  local oldest, ticket, listed = oldest_ready()
  for lane, its in pairs(state.hot) do
    if not oldest or its < ticket then oldest, ticket, listed = lane, its, nil end
  end
  return oldest, listed
end

-- Whether a lane is ready as this member says; else it goes. Without one it became ready in this call.
local function is_listed(lane, listed)
  if not listed then return true end
  local what, queue = parts_of(lane)
  local ticket = what and load_lane(lane).ticket
  if ticket and listed == queue .. '\0' .. ticket .. lane and first_of(lane) then return true end
  redis.call('ZREM', READY, listed)
  state.oldest = {}
  if what and not waits_for_lock(lane) and first_of(lane) then list_again(lane) end
  return false
end

-- What the caller had no slot for is ready for anybody.
local function cool_down()
  for lane, ticket in pairs(state.hot) do
    state.hot[lane] = nil
    local entry = load_lane(lane)
    make_ready(lane, entry, ticket)
    save_lane(lane, entry)
    touch(entry.at)
  end
  settle_touched()
end
