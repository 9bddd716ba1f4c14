-- Awaited: outcomes that duplicates will ask for. These duplicates were published while the first task was
-- pending.
-- awaited, in a record: the number of these duplicates. This number and the finished copies end with the
-- time of the record in KEYS ends.

local function forget_end(task, record)
  if not record.finished and not record.awaited then redis.call('ZREM', ENDS, 'records:' .. task) end
end

local function is_awaited(first)
  return record_of(first).awaited ~= nil
end

local function less_awaited(first, by)
  local record = record_of(first)
  local left = (record.awaited or 0) - by
  record.awaited = left > 0 and left or nil
  forget_end(first, record)
  mark_changed(first)
end

local function more_awaited(first, by, till)
  local record = record_of(first)
  record.awaited = (record.awaited or 0) + by
  redis.call('ZADD', ENDS, 'GT', till, 'records:' .. first)
  mark_changed(first)
end

-- The task has ended: move the number of its duplicates from the lock to the record.
local function keep_awaited(task, plan, lock)
  if lock.awaited == 0 then return end
  more_awaited(task, lock.awaited, NOW + plan.ttl_ms)
  lock.awaited = 0
end

-- The time of the record is over: no copy and no duplicate is expected any more.
local function record_lapsed(task)
  local record = record_of(task)
  record.finished, record.awaited = nil, nil
  mark_changed(task)
end
