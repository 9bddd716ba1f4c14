-- Followers: parked tasks that wait for an identity lock. These tasks need no slot for the next step: each
-- goes to the lane where it waits next.
local MANY = 1000000

local function judge_again(task, record)
  leave_line(task, record)
  judge_record(task, record)
  enqueue(task, record)
end

-- Move on the tasks in the lanes of this name, in all queues, as far as this call may (state.moves). The
-- tasks get this verdict (and lost, as in claims.lua), or are judged again. rest: what is due at once if more
-- tasks are left. Returns whether none is.
local function each_goes_on(what, rest, verdict, first, lost)
  local from, last, most = '[' .. what .. '\0', '(' .. what .. '\1', math.max(state.moves, 0)
  local found = redis.call('ZRANGEBYLEX', LINES, from, last, 'LIMIT', 0, most + 1)
  local is_all = #found <= most
  if not is_all then
    found[#found] = nil
    make_due(rest, NOW)
  end
  state.moves = state.moves - #found
  for _, member in ipairs(found) do
    local task = string.match(string.sub(member, #what + 2), '^[^%z]*%z%d+%.(.*)$')
    local record = task and load_record(task)
    if not record or record.nonce or not record.lock or member_of(task, record) ~= member then
      out_of_line(member, task, record)
    elseif verdict then
      change_verdict(task, record, verdict, first, lost)
    else
      judge_again(task, record)
    end
  end
  return is_all
end

-- The task that these followed has ended: give them its outcome. While any are left, it counts as awaited.
-- went_on: this goes on with tasks that were too many for an earlier call.
local function followers_conclude(identity, first, lost, went_on)
  local name = identity .. ':' .. first
  local rest = (lost and 'lost:' or 'concluded:') .. name
  local is_all = each_goes_on('follow:' .. name, rest, 'conclude', first, lost)
  if not is_all and not went_on then more_awaited(first, MANY, NOW + 3600000) end
  if is_all and went_on then less_awaited(first, MANY) end
end

-- A lock could not be read, so the tasks that others waited for are unknown: judge all of the waiting tasks
-- again.
local function all_go_on(identity)
  local name = 'follow:' .. identity
  each_waits_no_more('next:' .. identity)
  for _, what in ipairs(names_from(LINES, '[' .. name .. ':', '(' .. name .. ';', 20)) do
    each_waits_no_more(what)
  end
end

-- Judge the tasks in the lanes of this name again.
local function each_waits_no_more(what)
  each_goes_on(what, 'lock:' .. what)
end

-- Go on with tasks that were too many for one call.
local function go_on_with(what)
  local kind, identity, first = string.match(what, '^(%l+):([^:]*):?(.*)$')
  if kind == 'next' then return wake_next(identity) end
  local lock = load_lock(identity)
  if lock and lock.task == first and (lock.state == 'queued' or lock.state == 'running') then return end
  wake_followers(identity, first)
end

-- The newest task has taken the lock of a parked one. Judge the parked task again, with 'replace' as its
-- on_conflict.
local function make_way(identity, task)
  local record = load_record(task)
  if not record or record.nonce or not record.lock or record.lock.verdict ~= 'run' then return end
  if record.lock.identity ~= identity then return end
  record.lock.on_conflict = 'replace'
  judge_again(task, record)
end
