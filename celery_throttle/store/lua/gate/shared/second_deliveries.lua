-- Second deliveries: another delivery of a task that holds permits waits until that run has ended. The second
-- delivery is a part of the record of the task, and has the same parts as a parked delivery.

local function load_second(task)
  return record_of(task).second
end

-- The message is in KEYS messages, beside that of the delivery that holds.
local function second_message(task)
  return redis.call('HGET', MESSAGES, '\0' .. task) or ''
end

local function save_second(task, second, message)
  second.v, second.second, second.finished, second.awaited = nil, nil, nil, nil
  record_of(task).second = second
  redis.call('HSET', MESSAGES, '\0' .. task, message)
  mark_changed(task)
end

local function forget_second(task)
  record_of(task).second = nil
  redis.call('HDEL', MESSAGES, '\0' .. task)
  mark_changed(task)
end

-- Drop the second delivery, because its task is over or will not run.
local function drop_second(task)
  local second = load_second(task)
  if not second then return end
  finish(task, second, false)
  forget_second(task)
end

-- A run has ended that a second delivery waited for. Returns the record of that delivery if it goes on.
local function settle_second(task, record, result)
  local second = load_second(task)
  if not second then return nil end
  local message = second_message(task)
  forget_second(task)
  local is_later = (second.attempt or 0) > (record.attempt or 0)
  if result ~= 'nothing' and not is_later and may_be_copies(record, second) then
    finish(task, second, false)
    return nil
  end
  redis.call('HSET', MESSAGES, task, message)
  -- The task that this delivery waited for may wait for this delivery by now.
  if second.lock and second.lock.verdict then judge_record(task, second) end
  enqueue(task, second)
  return second
end

-- A task runs although it is parked, because its lease had ended or it was delivered twice. Its parked
-- message waits for the run to end.
local function step_back(task, parked)
  leave_line(task, parked)
  local second, message = load_second(task), redis.call('HGET', MESSAGES, task) or ''
  forget_task(task)
  local newer = second and (parked.attempt or 0) - (second.attempt or 0)
  if newer == 0 then
    await_both(second, parked)
    mark_changed(task)
    return
  end
  if newer then finish(task, newer > 0 and second or parked, false) end
  if not newer or newer > 0 then save_second(task, parked, message) end
end
