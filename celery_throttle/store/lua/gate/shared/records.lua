-- Records: what the store knows of a task that holds permits or is parked.
--
-- A record is a JSON object: v (VERSION); needs: the permits it takes (see needs.lua), '' for none;
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
-- outside: nobody's message, but a holder outside of tasks; told: an object of the workers that were told
-- that it is parked, each with the number of that call, who have acknowledged the broker's message when their
-- next call comes; unacked: an object of the nonces of those of its deliveries that the broker keeps all the
-- same; moves: how often it went from the lane of one bucket to another's.

-- The record, or nil and why it cannot be read.
local function record_in(packed)
  return readable(packed, 'record')
end

-- The same, of a task that a worker can name in a call.
local function named_record(task, packed)
  if string.find(task, '[\128-\255]') and not is_utf8(task) then return nil, 'not readable: task id' end
  return record_in(packed)
end

local function load_record(task)
  local packed = redis.call('HGET', RECORDS, task)
  if not packed then return nil end
  local record, why = named_record(task, packed)
  if not record then
    note_wrong('records', task, why)
    to_settle('unreadable task', task, packed, why)
  end
  return record
end

-- How far the clock may have been set back (tenths of a ms), and where numbers stop being exact.
local AHEAD_MOST, STAMPS_END = 8640000000, 9007199254740000

local function save_record(task, record)
  state.saved[task] = cjson.encode(record)
  redis.call('HSET', RECORDS, task, state.saved[task])
end

local function forget_task(task)
  redis.call('HDEL', MESSAGES, task)
  redis.call('HDEL', RECORDS, task)
end

-- A number that META keeps; 0 if there is none, or if it cannot be read, or is more than it can be.
local function meta_number(field, most)
  local kept = redis.call('HGET', META, field)
  if not kept then return 0 end
  local number = tonumber(kept)
  if number and number >= 0 and number <= most then return number end
  -- Too large also if the clock was set back.
  local too_large = number and number > most and number < NUMBERS_END
  if not too_large then note_unreadable(META, 'meta', field, kept) end
  return 0
end

-- A place in line is when it came, in tenths of a ms (cjson keeps 14 digits), never twice the same but for
-- those that a worker had for a while (age_ms) before the store heard of them.
local function next_ticket(age_ms)
  -- One from far in the future was never given.
  local last, now = meta_number('ticket', math.floor(NOW_US / 100) + AHEAD_MOST), math.floor(NOW_US / 100)
  local ticket = math.max(now, last + 1)
  redis.call('HSET', META, 'ticket', string.format('%.0f', ticket))
  return ticket - math.floor((age_ms or 0) * 10)
end

-- Fencing tokens and claims. The clock keeps them growing when the last one is lost with the data, the
-- last one when the clock is set back. Text: cjson loses digits of numbers beyond 10^14.
local function next_stamp()
  local stamp = string.format('%.0f', math.max(meta_number('stamp', STAMPS_END) + 1, NOW_US))
  redis.call('HSET', META, 'stamp', stamp)
  return stamp
end
