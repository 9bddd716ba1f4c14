-- Starting: the caller's slots go to the oldest tasks that can start in them, whatever they wait for.

-- What one call may start: 2 for each task, and 1 for each limit that it needs.
local MOST_WORK = 19

-- The first bucket that keeps a task from starting, if one does: also that where its lane is listed, since
-- another may have come before it there after it was made ready; and after how long (ms) to look again.
local function blocked_by(needs, task, record)
  for _, need in ipairs(needs) do
    local bucket = need.bucket
    local room, wait_ms = room_for(need)
    if not room or barred(bucket, task, record.ticket) then return bucket, wait_ms end
    local _, rank = first_at(bucket)
    local own = rule_of(bucket).fair and record.place or record.ticket
    -- Those who wait for a rate alone are not before one that has its start.
    local has_start = need.booked and rule_of(bucket).permits == ANY_NUMBER
    if rank and rank < ordered(own) and not has_start then return bucket, 0 end
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
  if entry.passed then take_back(lane, entry) end
  local blocker, wait_ms = blocked_by(needs_of(takes(record)), first.task, record)
  if blocker and wait_ms > 0 then again_at(blocker, NOW + wait_ms) end
  if blocker then return move_lane(lane, entry, blocker, first, record) end
  leave_line(first.task, record)
  -- Its lock may have ended while it waited, and be another's now.
  local judged = record.lock and record.lock.verdict == 'run'
  if judged and not judge_arrival(first.task, record) then return enqueue(first.task, record) end
  if record.turn and record.ticket > 0 then turn_served(record) end
  hold(first.task, record, state.holder .. ':' .. state.call .. '.' .. #state.grants, true)
  state.slots = state.slots - 1
  state.grants[#state.grants + 1] = first.task
end

-- Give the caller's slots to those whose turn it is, and hint to others.
local function serve()
  if next(state.unsettled) then settle() end
  if state.adds_ends then
    reap_ends(4) -- so what has ended does not pile up where there is no beat
    if next(state.unsettled) then settle() end
  end
  if not anybody_waits() then return end
  refresh_touched()
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
    if is_listed(lane, listed) then start_first(lane) else drop_listed(lane, listed) end
    if next(state.unsettled) then settle() end
    refresh_touched()
  end
  if next(state.unsettled) then settle() end
  cool_down()
  for _, bucket in ipairs(state.touched) do again_at(bucket, NOW) end
  hint_ready()
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
  refresh_touched()
end

local function hint_ready()
  local told = {}
  for _, each in ipairs(state.ready) do
    if not told[each.queue] and load_lane(each.lane).ticket then
      told[each.queue] = true
      hint('ready ' .. each.queue)
    end
  end
  for bucket in pairs(state.began) do
    if first_at(bucket) then hint('line ' .. bucket) end
  end
end
