-- Workers: each numbers its calls, one at a time. The number and the answers of the last call are stored. So
-- a worker that lost the reply repeats the call, and gets the same answers.
--
-- KEYS workers: an object of
--   number         of the last call; a fraction after the worker has left
--   since          when the store carried that call out (ms)
--   answers        to the tasks that arrived
--   granted        ids of the parked tasks that the worker got
--   withdrawn      { task id, message } of tasks that left their line; no other place has these messages any
--                  more
--   confirms       'message/task' of finished messages whose copies its next call confirms as acknowledged
--   newest         of the newest task that the worker parked: came, by the clock of the worker (ms), and
--                  ticket
--   clock_off      how far the clock of the worker is from that of the store (ms)
--   broker         the code of its broker
--   sites          see exchange.lua; only of an app that has limits with sites
--   till           until when all this is kept (ms)
local KEPT_MS = 86400000

-- Return the unique part of the name of a worker. The store keeps the whole name only for holders.
local function id_of(worker)
  return string.match(worker, '[^/]*$')
end

local function load_worker(worker)
  local packed = redis.call('HGET', WORKERS, worker)
  if not packed then return { number = 0 } end
  local known, why = readable(packed, 'worker')
  if known then return known end
  note_unreadable(WORKERS, 'workers', worker, packed, why)
  return { number = 0 }
end

-- Return whether a worker has acknowledged at the broker the messages that a call confirmed as parked. A
-- worker without a number has left, or has been gone for so long that the broker has delivered its messages
-- again.
local function has_acknowledged(worker, call)
  local number = worker == state.worker and state.call_before or load_worker(worker).number
  return number == 0 or number > call
end

-- The worker acknowledges a copy of a finished message before its next call.
local function confirm_later(worker, task, message)
  local known = worker ~= state.worker and load_worker(worker)
  local confirms = known and known.confirms or not known and state.confirms or {}
  confirms[#confirms + 1] = message .. '/' .. task
  if not known then return end
  known.confirms = confirms
  redis.call('HSET', WORKERS, worker, cjson.encode(known))
end

-- Store the clock of the worker, by which its tasks came. A call that is on its way for much longer than the
-- one before shows that the store stood still, or was away.
local function keep_clock(before, clock_ms)
  state.clock_ms, state.newest, state.clock_off = clock_ms, before.newest, NOW_US / 1000 - clock_ms
  if before.clock_off then state.away_ms = math.max(state.away_ms, state.clock_off - before.clock_off) end
end

local function save_worker(worker, entry, before)
  entry.since, entry.till, entry.clock_off, entry.newest = NOW, before.till, state.clock_off, state.newest
  entry.sites = state.sites
  local queue = unpack(state.queues)
  entry.broker = string.match(queue or '', '^(%x%x%x%x%x%x%x%x):')
  if not entry.till or entry.till < NOW + KEPT_MS / 2 then
    entry.till = NOW + KEPT_MS
    redis.call('ZADD', ENDS, entry.till, 'workers:' .. worker)
    if entry.broker then redis.call('ZADD', ENDS, 'XX', entry.till, 'meta:broker:' .. entry.broker) end
    redis.call('ZADD', ENDS, 'XX', entry.till, 'meta:declared:' .. state.holder)
    redis.call('PEXPIRE', WORKERS, 2 * KEPT_MS)
  end
  redis.call('HSET', WORKERS, worker, cjson.encode(entry))
end
