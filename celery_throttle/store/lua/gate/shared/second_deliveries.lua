-- Second deliveries: another delivery of a task that holds waits until that run has ended.

local function load_second(task)
  local packed = redis.call('HGET', SECONDS, task)
  return packed and record_in(packed) or nil
end

local function write_second(task, second)
  redis.call('HSET', SECONDS, task, cjson.encode(second))
end

local function save_second(task, second, message)
  write_second(task, second)
  redis.call('HSET', SECOND_MESSAGES, task, message)
end

local function forget_second(task)
  redis.call('HDEL', SECONDS, task)
  redis.call('HDEL', SECOND_MESSAGES, task)
end

-- The task is over, or is not to run: neither is this delivery.
local function drop_second(task)
  local second = load_second(task)
  if second then note_ran(task, second, false) end
  forget_second(task)
end

-- Another delivery waited for this one to end. Returns its record if it goes on.
local function settle_second(task, record, result)
  local packed = redis.call('HGET', SECONDS, task)
  if not packed then return nil end
  local second, why = record_in(packed)
  local message = redis.call('HGET', SECOND_MESSAGES, task)
  forget_second(task)
  if second and result ~= 'nothing' and (second.attempt or 0) <= (record.attempt or 0) then
    note_ran(task, second, false)
    return nil
  end
  redis.call('HSET', MESSAGES, task, message or '')
  if not second then return keep_aside(task, why, packed) end
  -- Whom it waited for before it stepped back may wait for it by now.
  if second.lock and second.lock.verdict then judge_record(task, second) end
  enqueue(task, second)
  return second
end

-- A parked message of a task that runs after all (its lease had ended, or it was delivered twice) waits
-- for the run to end.
local function step_back(task, parked)
  leave_line(task, parked)
  local second, message = load_second(task), redis.call('HGET', MESSAGES, task) or ''
  redis.call('HDEL', MESSAGES, task)
  local newer = second and (parked.attempt or 0) - (second.attempt or 0)
  if newer == 0 then
    await_both(second, parked)
    write_second(task, second)
    return
  end
  if newer then note_ran(task, newer > 0 and second or parked, false) end
  if not newer or newer > 0 then save_second(task, parked, message) end
end
