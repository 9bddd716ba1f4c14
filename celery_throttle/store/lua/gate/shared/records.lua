-- Records: what the store knows of a task that holds permits or is parked.
--
-- A record is a JSON object: v (VERSION); needs: the permits it takes (see needs.lua), '' for none;
-- queue: whose workers can start it; ticket: its place, which is when it came (see next_ticket), negative
-- for one that goes before all others; attempt: grows by retry and replace; nonce: which delivery holds,
-- absent while parked; since: when it got its permit (ms). Only where there is such a thing: place: its
-- place in the line of a limit whose tasks take turns; turn: { bucket, who, step }, see turns.lua;
-- deadline: until when it may wait (ms); expired: it waited for too long, and is only to be told so;
-- dropped: the same, since an operator dropped it, and who did, as text; over: another delivery of the task
-- has succeeded, see over.lua; lent: its message is on the way to its queue, and holds no permits;
-- deliveries: how often it was started before; lock: what it does with its identity lock, see claims.lua;
-- code: which task it is, where no limit is called as it (see core/task_codes.py);
-- outside: nobody's message, but a holder outside of tasks; told: an object of the workers that were told
-- that it is parked, each with the number of that call, who have acknowledged the broker's message when their
-- next call comes; unacked: an object of the nonces of those of its deliveries that the broker keeps all the
-- same; moves: how often it went from the lane of one bucket to another's.

local function decoded(packed)
  local readable, value = pcall(cjson.decode, packed)
  return readable and type(value) == 'table' and value.v == VERSION and value or nil
end

local function load_record(task)
  local packed = redis.call('HGET', RECORDS, task)
  if not packed then return nil end
  return decoded(packed) or set_aside(task, packed)
end

local function save_record(task, record)
  state.saved[task] = cjson.encode(record)
  redis.call('HSET', RECORDS, task, state.saved[task])
end

local function forget_task(task)
  redis.call('HDEL', MESSAGES, task)
  redis.call('HDEL', RECORDS, task)
end

-- A place in line is when it came, in tenths of a ms (cjson keeps 14 digits), never twice the same but for
-- those that a worker had for a while (age_ms) before the store heard of them.
local function next_ticket(age_ms)
  local last = tonumber(redis.call('HGET', META, 'ticket') or 0)
  local ticket = math.max(math.floor(NOW_US / 100), last + 1)
  redis.call('HSET', META, 'ticket', string.format('%.0f', ticket))
  return ticket - math.floor((age_ms or 0) * 10)
end

-- As text whose order is that of the numbers: digits alone, since how Lua compares a sign depends on the
-- server's locale.
local NOUGHT = 1000000000000000

local function ordered(number)
  return string.format('%016.0f', number + NOUGHT)
end

-- Fencing tokens and claims. The clock keeps them growing when the last one is lost with the data, the
-- last one when the clock is set back. Text: cjson loses digits of numbers beyond 10^14.
local function next_stamp()
  local stamp = string.format('%.0f', math.max(tonumber(redis.call('HGET', META, 'stamp') or 0) + 1, NOW_US))
  redis.call('HSET', META, 'stamp', stamp)
  return stamp
end
