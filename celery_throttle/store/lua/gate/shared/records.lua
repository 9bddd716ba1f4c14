-- Records: what the store knows of a task: each is read and decoded once a call, and written once at its end.
--
-- A record is a JSON object of v (VERSION) and what there is of: second: another delivery of the task, which
-- waits for this one to end (see second_deliveries.lua); finished: see copies.lua; awaited: see awaited.lua;
-- and, if a delivery holds permits or is parked, the parts of that: needs: the permits it takes (see
-- needs.lua), '' for none;
-- queue: whose workers can start it; ticket: its place, which is when it came (see next_ticket), negative
-- for one that goes before all others; attempt: grows by retry and replace; nonce: which delivery holds,
-- absent while parked; since: when it got its permit (ms). Only where there is such a thing: place: its
-- place in the line of a limit whose tasks take turns; turn: { bucket, who, step }, see fair_queueing.lua;
-- deadline: until when it may wait (ms); expired: it waited for too long, and is only to be told so;
-- dropped: the same, since an operator dropped it, and who did, as text; dropped_at: when (ms);
-- over: another delivery of the task has succeeded, see over.lua; lent: its message is on the way to its
-- queue, and holds no permits;
-- deliveries: how often it was started before; lock: what it does with its identity lock, see claims.lua;
-- code: which task it is, where no limit is called as it (see core/task_codes.py);
-- outside: nobody's message, but a holder outside of tasks; out: see copies.lua; moves: how often it went
-- from the lane of one bucket to another's.

-- A record with a delivery that holds or is parked; else nil, and why it cannot be read.
local function record_in(packed)
  local record, why = readable(packed, 'record')
  return record and record.needs and record or nil, why
end

-- What there is of a task; nothing if it cannot be read.
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

-- The same if a delivery holds or is parked.
local function load_record(task)
  local record = record_of(task)
  return record.needs and record or nil
end

local function mark_changed(task)
  if state.changed[task] then return end
  state.changed[task] = true
  state.changed[#state.changed + 1] = task
end

-- Keep this of the delivery that holds or is parked, beside what else there is of the task.
local function save_record(task, record)
  local kept = record_of(task)
  if kept ~= record then
    record.second, record.finished, record.awaited = kept.second, kept.finished, kept.awaited
    record.v, state.records[task] = VERSION, record
  end
  mark_changed(task)
end

-- That delivery is gone.
local function forget_delivery(task)
  local kept = record_of(task)
  local second, finished, awaited = kept.second, kept.finished, kept.awaited
  state.records[task] = { v = VERSION, second = second, finished = finished, awaited = awaited }
  mark_changed(task)
end

-- And its message.
local function forget_task(task)
  redis.call('HDEL', MESSAGES, task)
  forget_delivery(task)
end

-- What was changed is written, at the end of a call; gate_script.py makes each script that writes end so.
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
