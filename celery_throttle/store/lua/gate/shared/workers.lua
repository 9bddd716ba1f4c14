-- Workers: each numbers its calls, one at a time. The last one's number and answers are kept, so that one
-- whose reply was lost is sent again and answered with the same.
--
-- KEYS workers: an object of number; since (ms); asked, parked: the answers to what it asked for and
-- parked; granted: ids of the parked tasks that it got; confirms: 'attempt task' of those that are over, and
-- which it has acknowledged at the broker when its next call comes;
-- withdrawn: { task id, message } of those that left their line, which nobody else knows of any more; newest:
-- when the newest that it parked came, by its clock (ms), and its place in line; clock_off: how far its clock
-- is from the store's (ms); broker: the code of its broker; till: until when all this is kept (ms).
local KEPT_MS = 86400000

-- The part of a worker's name that no other has; all of it is kept only of who holds.
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

-- Whether a worker has acknowledged at the broker what a call told it is parked. One that is not known any
-- more said goodbye, or is gone for so long that the broker has delivered again what it had.
local function has_acknowledged(worker, call)
  local number = worker == state.worker and state.call_before or load_worker(worker).number
  return number == 0 or number > call
end

-- It acknowledges a copy of an attempt that is over before its next call.
local function confirm_later(worker, task, attempt)
  local known = worker ~= state.worker and load_worker(worker)
  local confirms = known and known.confirms or not known and state.confirms or {}
  confirms[#confirms + 1] = attempt .. ' ' .. task
  if not known then return end
  known.confirms = confirms
  redis.call('HSET', WORKERS, worker, cjson.encode(known))
end

-- What the clock of the worker shows, by which its tasks came. A call that is much longer on its way than the
-- one before shows that the store stood still, or was away.
local function hear_clock(before, clock_ms)
  state.clock_ms, state.newest, state.clock_off = clock_ms, before.newest, NOW_US / 1000 - clock_ms
  if before.clock_off then state.away_ms = math.max(state.away_ms, state.clock_off - before.clock_off) end
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
