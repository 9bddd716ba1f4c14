-- Claim an identity lock for a task that is about to be published.
-- KEYS, ARGV[1..4] as in common.lua (slots 0, no queues); then task id, lock as in locks.lua, how long it has to last at
-- least (ms: until its ETA or while it may wait), and 1 if it is published all the same should another task have the lock.
-- Returns one text, which is read faster than an array: answer, claim, other task id, with spaces between. Answer 1: claimed,
-- 2: this task has it already (a retry), 3: claimed in place of the other task, which must not run, 0: the other task has it.
redis.call('ZREM', LEASES, '')
reap_locks(4)
local task, spec, least_ms = argument(), decoded(argument()), tonumber(argument())
local awaited = argument() == '1'
local identity = spec[IDENTITY]

local function claim()
  local lock, conflict = live_lock(identity), spec[CONFLICT]
  if lock and lock[L_TASK] == task then
    if lock[L_STATE] == 'D' then return 0, task, '0' end
    if spec[UNTIL] ~= 'expires' then lock[L_FLOOR] = math.max(lock[L_FLOOR], NOW + least_ms) end
    save_lock(identity, lock, tonumber(redis.call('ZSCORE', LOCK_ENDS, identity)))
    return 2, '', lock[L_CLAIM]
  end
  local newest = conflict == 'replace' or conflict == 'keep_last'
  local state = lock and lock[L_STATE] or 'S'
  if state == 'S' or newest and state == 'Q' then
    local mine = new_lock(task, text(next_stamp()))
    if state == 'S' then
      save_lock(identity, mine, NOW + least_ms)
    else
      replace_lock(identity, lock, mine, NOW + least_ms)
    end
    local waits = load_record(task)
    if waits and waits[STATE] == 'P' and waits[LOCK] and waits[LOCK][VERDICT] ~= 'run' then
      leave_line(task, waits)
      waits[LOCK][VERDICT], waits[LOCK][FIRST], waits[LOCK][CLAIM] = 'run', '', mine[L_CLAIM]
      enqueue(task, waits)
      joined[#joined + 1] = line_of(waits)
    end
    return state == 'S' and 1 or 3, state == 'S' and '' or lock[L_TASK], mine[L_CLAIM]
  end
  if conflict == 'keep_last' and state == 'R' then
    local before = lock[L_NEXT]
    spec[CLAIM] = text(next_stamp())
    newest_waits(lock, task, spec)
    return before == '' and 1 or 3, before, spec[CLAIM]
  end
  if awaited then
    if state == 'D' or state == 'F' then
      redis.call('HINCRBY', LOCKS, '\1' .. lock[L_TASK], 1)
      redis.call('ZADD', LOCK_ENDS, 'GT', NOW + spec[TTL_MS], '\1' .. lock[L_TASK])
    else
      lock[L_AWAITED] = lock[L_AWAITED] + 1
      redis.call('HSET', LOCKS, identity, cjson.encode(lock))
    end
  end
  return 0, lock[L_TASK], '0'
end

local answer, other, number = claim()
for _, line in ipairs(joined) do promote(line) end
return answer .. ' ' .. number .. ' ' .. other
