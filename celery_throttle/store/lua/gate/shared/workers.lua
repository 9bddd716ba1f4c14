-- Workers: each numbers its calls, one at a time. The number and the answers of the last call are stored. So
-- a worker that lost the reply repeats the call, and gets the same answers.
--
-- KEYS workers: an object of
--   number         of the last call; a fraction after the worker has left
--   since          when the store carried that call out (ms)
--   asked, parked  the answers to these rows
--   granted        ids of the parked tasks that the worker got
--   withdrawn      { task id, message } of tasks that left their line; no other place has these messages any
--                  more
--   confirms       'attempt task' of finished attempts whose copies its next call confirms as acknowledged
--   newest         of the newest task that the worker parked: came, by the clock of the worker (ms), and
--                  ticket
--   clock_off      how far the clock of the worker is from that of the store (ms)
--   broker         the code of its broker
--   till           until when all this is kept (ms)
local KEPT_MS, CLOCK_SET_MS = 86400000, 1000

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

-- The worker acknowledges a copy of a finished attempt before its next call.
local function confirm_later(worker, task, attempt)
  local known = worker ~= state.worker and load_worker(worker)
  local confirms = known and known.confirms or not known and state.confirms or {}
  confirms[#confirms + 1] = attempt .. ' ' .. task
  if not known then return end
  known.confirms = confirms
  redis.call('HSET', WORKERS, worker, cjson.encode(known))
end

-- Return how much later than usual (ms) this call comes, by the clock of its worker. The least difference of
-- the clocks is the usual one, because a busy machine makes calls late and none early. Clocks drift, so that
-- the least may grow by 1 ms a second. A jump by a second means that a clock was set.
local function lateness(before, clock_ms)
  state.clock_off = NOW_US / 1000 - clock_ms
  if not before.clock_off then return 0 end
  local usual = math.min(before.clock_off + (NOW - before.since) / 1000, state.clock_off)
  local late_ms = state.clock_off - usual
  state.away_ms = math.max(state.away_ms, late_ms) -- or the store stood still
  if late_ms > CLOCK_SET_MS then return 0 end
  state.clock_off = usual
  return late_ms
end

-- Store the clock of the worker, by which its tasks came.
local function hear_clock(before, clock_ms)
  state.clock_ms, state.newest, state.late_ms = clock_ms, before.newest, lateness(before, clock_ms)
end

local function save_worker(worker, said, before)
  said.since, said.till, said.clock_off, said.newest = NOW, before.till, state.clock_off, state.newest
  local queue = unpack(state.queues)
  said.broker = string.match(queue or '', '^(%x%x%x%x%x%x%x%x):')
  if not said.till or said.till < NOW + KEPT_MS / 2 then
    said.till = NOW + KEPT_MS
    redis.call('ZADD', ENDS, said.till, 'workers:' .. worker)
    if said.broker then redis.call('ZADD', ENDS, 'XX', said.till, 'meta:broker:' .. said.broker) end
    redis.call('ZADD', ENDS, 'XX', said.till, 'meta:declared:' .. state.holder)
    redis.call('PEXPIRE', WORKERS, 2 * KEPT_MS)
  end
  redis.call('HSET', WORKERS, worker, cjson.encode(said))
end
