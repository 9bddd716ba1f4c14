-- Starts: the slots of the caller go to the oldest tasks that can start in them, over all lines.

-- How much one call may start: 2 for each task, and 1 for each limit that the task needs.
local MOST_WORK = 19

-- Return the bucket of a site whose room goes to another task, and whether the caller starts that task: then
-- before all others. Returns nil if there is none.
local function site_of_another(needs, first)
  for _, need in ipairs(needs) do
    if site_of(need.bucket) then
      local before, is_next = give_turn(need.bucket, place_at_sites(needs, first))
      if is_next then state.hot[before] = '' end
      if is_next then return need.bucket, true end
      if before then return need.bucket, false end
    end
  end
  return nil
end

-- A lane that cannot start at this site stays ready for others. Unless the caller goes on with the first task
-- there, no newer task gets the permits of the site in this call.
local function stay_ready(lane, entry, first, bucket, goes_on)
  state.refused = state.refused or {}
  state.refused[bucket] = not goes_on
  make_ready(lane, entry, first)
  save_lane(lane, entry)
end

-- Start the first task of a ready lane, or find the reason why it cannot start.
local function start_first(lane)
  local entry, first = load_lane(lane), first_of(lane)
  local record = first and load_record(first.task)
  if not record or record.nonce or member_of(first.task, record) ~= first.member then
    -- The record is unreadable or changed by another release, so the count is corrected by the lane alone.
    if first then out_of_line(first.member, first.task, record) end
    state.firsts[lane] = nil
    if first then count_waiting({ needs = string.match(lane, '^%d') and parts_of(lane) or '' }, -1) end
    list_lane(lane)
    return
  end
  local ends = (record.deadline or record.expires) and not record.expired and wait_ends(record)
  if ends and ends <= NOW then return expire_parked(first.task, record) end
  if entry.passed then take_back(lane, entry) end
  local needs = state.sites and bound(takes(record)) or takes(record)
  local blocker, wait_ms = blocked_by(needs_of(needs), first.task, record)
  if blocker and wait_ms > 0 then again_at(blocker, NOW + wait_ms) end
  local goes_on = false
  if not blocker and state.sites then blocker, goes_on = site_of_another(needs_of(needs), first) end
  if blocker and site_of(blocker) then return stay_ready(lane, entry, first, blocker, goes_on) end
  if blocker then return move_lane(lane, entry, blocker, first, record) end
  if state.sites then take_turns_back(lane, needs_of(needs)) end
  leave_line(first.task, record)
  -- The lock may have ended while the task waited, and may belong to another task now.
  local judged = record.lock and record.lock.verdict == 'run'
  if judged and not judge_arrival(first.task, record) then return enqueue(first.task, record) end
  if record.turn and record.ticket > 0 then turn_served(record) end
  hold(first.task, record, state.holder .. ':' .. state.call .. '.' .. #state.grants, true)
  state.slots = state.slots - 1
  state.grants[#state.grants + 1] = first.task
end

-- Settle and look at the touched buckets in turn, because each may bring about more of the other.
local function catch_up()
  while next(state.unsettled) or #state.touched > 0 and state.looks > 0 do
    if next(state.unsettled) then settle() end
    refresh_touched()
  end
end

-- Give the slots of the caller to the next tasks, and send hints to other workers.
local function serve()
  -- So that ended fields do not pile up where there is no beat.
  if state.adds_ends then reap_ends(4) end
  if next(state.unsettled) then settle() end
  if not any_parked() then return end
  catch_up()
  local left = MOST_WORK
  -- A task without limits also waits until a store that was emptied has settled, because the task may run
  -- elsewhere.
  while state.slots > 0 and left > 0 and settling() == 0 do
    local lane, listed = oldest_startable()
    if not lane then break end
    state.hot[lane] = nil
    left = left - 2 - #needs_of(parts_of(lane) or '')
    if is_listed(lane, listed) then start_first(lane) else drop_listed(lane, listed) end
    catch_up()
  end
  cool_down()
  for _, bucket in ipairs(state.touched) do again_at(bucket, NOW) end
  if any_parked() then
    for bucket, ms in pairs(state.waits or {}) do again_at(bucket, ms) end
  end
  hint_ready()
end

-- Lanes for which the caller had no slot are ready for all workers.
local function cool_down()
  for lane in pairs(state.hot) do
    state.hot[lane] = nil
    local entry = load_lane(lane)
    make_ready(lane, entry, first_of(lane))
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
  if state.freed then hint_sites() end
  -- A worker gets the time with the answer to its own call.
  if state.due and state.worker == '' then hint('due ' .. math.max(math.ceil(state.due - NOW), 0)) end
end
