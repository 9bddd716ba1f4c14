-- Followers: parked tasks that wait for an identity lock. These tasks need no slot for the next step: each
-- goes to the lane where it waits next.
local AT_ONCE, MANY = 500, 1000000

local function judge_again(task, record)
  leave_line(task, record)
  judge_record(task, record)
  enqueue(task, record)
end

-- Move on the tasks in the lanes of this name, in all queues. The tasks get this verdict (and lost, as in
-- claims.lua), or are judged again. Returns how many.
local function each_goes_on(what, verdict, first, lost)
  local from, last = '[' .. what .. '\0', '(' .. what .. '\1'
  local found = redis.call('ZRANGEBYLEX', LINES, from, last, 'LIMIT', 0, AT_ONCE)
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
  -- More tasks may be left, so the lanes are due at once.
  if #found == AT_ONCE then redis.call('ZADD', DUE, NOW, 'lock:' .. what) end
  return #found
end

-- The task that these followed has ended: give them its outcome.
local function followers_conclude(identity, first, lost)
  if each_goes_on('follow:' .. identity .. ':' .. first, 'conclude', first, lost) < AT_ONCE then return end
  -- Keep the outcome for the followers that are left.
  more_awaited(first, MANY, NOW + 3600000)
end

-- A lock could not be read, so the tasks that others waited for are unknown: judge all of the waiting tasks
-- again.
local function all_go_on(identity)
  local name = 'follow:' .. identity
  each_goes_on('next:' .. identity)
  for _, what in ipairs(names_from(LINES, '[' .. name .. ':', '(' .. name .. ';', 20)) do
    each_goes_on(what)
  end
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
