-- Records: the data of each task. A call reads and decodes a record once, and writes the record once at its
-- end.
--
-- A record is a JSON object of
--   v           VERSION
--   second      another delivery of the task, which waits for this one to end (see second_deliveries.lua)
--   finished    see copies.lua
--   awaited     see awaited.lua
-- and, for a delivery that holds permits or is parked:
--   needs       the permits that it takes (see needs.lua), '' for none
--   queue       whose workers can start it
--   ticket      its place, the time of arrival (see next_ticket), negative for a task that goes before all
--               others
--   attempt     grows by retry and replace
--   publication names the message among those of its task id, and is the same for a retry; nil if unknown
--   nonce       of the delivery that holds; absent while parked
--   since       when the delivery got its permits (ms)
-- and, where they apply:
--   place       its place in the line of a limit whose tasks take turns
--   turn        { bucket, key, step }, see fair_queueing.lua
--   deadline    until when the task may wait for its permits (ms), by its start_deadline
--   expires     until when the task may start (ms), by its message
--   expired     one of both is over, and a worker only has to report that
--   dropped     an operator dropped the task: the reason and the author, as text; expired is set too
--   dropped_at  when (ms)
--   over        another delivery of the task has succeeded, see over.lua
--   lent        its message is on the way to its queue; holds no permits
--   deliveries  how often the task was started before
--   again       until when the task waits before it begins again (ms)
--   lock        its plan for the identity lock, see claims.lua
--   code        identifies the task if no limit has its name (see core/task_codes.py)
--   outside     a holder outside of tasks, without a message in a broker
--   out         see copies.lua
--   moves       how often the task went from the lane of one bucket to that of another

-- Return a record that has a delivery; else nil, and why the record cannot be read.
local function record_in(packed)
  local record, why = readable(packed, 'record')
  return record and record.needs and record or nil, why
end

-- Return the record of a task; an empty one if there is none, or it cannot be read.
local function record_of(task)
  local record, why = state.records[task], nil
  if record then return record end
  local packed = redis.call('HGET', RECORDS, task)
  local is_named = not string.find(task, '[\128-\255]') or is_utf8(task)
  if packed and is_named then
    record, why = readable(packed, 'record')
  elseif packed then
    why = 'not readable: task id'
  end
  if why then
    note_wrong('records', task, why)
    to_settle('unreadable task', task, packed, why, is_named)
  end
  record = record or { v = VERSION }
  state.records[task] = record
  return record
end

-- Return the record of a task, if a delivery holds permits or is parked.
local function load_record(task)
  local record = record_of(task)
  return record.needs and record or nil
end

local function mark_changed(task)
  if state.changed[task] then return end
  state.changed[task] = true
  state.changed[#state.changed + 1] = task
end

-- Store the delivery that holds permits or is parked, beside the other parts of the record.
local function save_record(task, record)
  local kept = record_of(task)
  if kept ~= record then
    record.second, record.finished, record.awaited = kept.second, kept.finished, kept.awaited
    record.v, state.records[task] = VERSION, record
  end
  mark_changed(task)
end

-- Remove that delivery.
local function forget_delivery(task)
  local kept = record_of(task)
  local second, finished, awaited = kept.second, kept.finished, kept.awaited
  state.records[task] = { v = VERSION, second = second, finished = finished, awaited = awaited }
  mark_changed(task)
end

-- Remove that delivery and its message.
local function forget_task(task)
  redis.call('HDEL', MESSAGES, task)
  forget_delivery(task)
end

-- Write the changed records, at the end of a call; gate_script.py appends this to each script that writes.
local function write_records()
  for _, task in ipairs(state.changed) do
    local record = state.records[task]
    if record.needs or record.second or record.finished or record.awaited then
      redis.call('HSET', RECORDS, task, packed_record(task))
    else
      redis.call('HDEL', RECORDS, task)
    end
  end
end

local function packed_record(task)
  return state.packed[task] or cjson.encode(state.records[task])
end
