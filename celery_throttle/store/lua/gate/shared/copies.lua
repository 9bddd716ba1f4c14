-- Copies: messages of a task that the broker may still have, beside the one in the store.
--
-- out, of a delivery: an object with one entry a copy:
--   id of a worker -> the number of the call whose reply confirmed that the store has the message; the worker
--                     acknowledges the message before its next call
--   nonce of a delivery -> 0, while its message is not acknowledged
--
-- finished, of a record: an object of messages that are over, each with such an object: their copies are
-- dropped on arrival. An entry 'again' means that a copy is known to come.
local FINISHED_MS = 86400000

local function await_copy(delivery, arrival)
  delivery.out = delivery.out or {}
  if arrival.unacked then
    delivery.out[arrival.nonce] = 0
  else
    delivery.out[state.worker] = state.call
  end
end

-- Merge the copies of two parked messages of one attempt.
local function await_both(delivery, other)
  delivery.out = delivery.out or {}
  for name, call in pairs(other.out or {}) do
    delivery.out[name] = math.max(delivery.out[name] or 0, call)
  end
end

-- Return whether the broker keeps a message of this delivery that no worker has acknowledged yet.
local function is_unacked(delivery)
  for _, call in pairs(delivery.out or {}) do
    if call == 0 then return true end
  end
  return false
end

-- Remove a copy that will not come any more; returns whether it was expected.
local function drop_copy(delivery, name)
  if not delivery or not delivery.out or not delivery.out[name] then return false end
  delivery.out[name] = nil
  if not next(delivery.out) then delivery.out = nil end
  return true
end

-- Return the name of the finished message that this delivery is a copy of, nil if there is none.
local function finished_as(task, delivery)
  local finished = record_of(task).finished
  if not finished then return nil end
  local name, attempt = message_of(delivery), string.format('%.0f', delivery.attempt or 0)
  if finished[name] then return name end
  if delivery.publication then return finished[attempt] and attempt or nil end
  for other in pairs(finished) do
    if string.match(other, '^%d+') == attempt then return other end
  end
  return nil
end

-- Remember a message that is over while copies of it may still come, so that these are dropped. Otherwise
-- nothing is stored: another run does no harm, and self.replace gives the task id to another task.
local function finish(task, delivery, comes_again)
  if not delivery.out and not comes_again then return end
  local message = message_of(delivery)
  local coming = { again = comes_again and 1 or nil }
  for name, call in pairs(delivery.out or {}) do
    if call == 0 or not has_acknowledged(name, call) then coming[name] = call end
    if call ~= 0 and coming[name] then confirm_later(name, task, message) end
  end
  if not next(coming) then return end
  local record = record_of(task)
  record.finished = record.finished or {}
  local out = record.finished[message] or {}
  for name, call in pairs(coming) do out[name] = call end
  record.finished[message] = out
  redis.call('ZADD', ENDS, 'GT', NOW + FINISHED_MS, 'records:' .. task)
  mark_changed(task)
end

-- Return whether the message of a delivery is over. If it is over, expect a copy until the worker has
-- acknowledged the message, as it does after this reply.
local function confirm_if_finished(task, delivery)
  local message = finished_as(task, delivery)
  if not message then return false end
  local attempt, publication = string.match(message, '^(%d+) ?(.*)$')
  publication = publication ~= '' and publication or nil
  local out = { [state.worker] = state.call }
  finish(task, { attempt = tonumber(attempt), publication = publication, out = out }, false)
  return true
end

-- Forget a copy of a finished message that will not come any more.
local function will_not_come(task, message, name)
  local record = record_of(task)
  local out = message and record.finished and record.finished[message]
  if not out or not out[name] then return end
  out[name] = nil
  if not next(out) then record.finished[message] = nil end
  if not next(record.finished) then record.finished = nil end
  forget_end(task, record)
  mark_changed(task)
end

-- Forget the copies that a worker has acknowledged. Each call confirms the messages of the call before,
-- except for the unacked rows.
local function confirm_copies(worker)
  for _, each in ipairs(state.confirms) do
    local message, task = string.match(each, '^(%d+ ?[^/]*)/(.*)$')
    if task then will_not_come(task, message, worker) end
  end
  state.confirms = {}
end
