-- Workers: each numbers its calls, one at a time. The last one's number and answers are kept, so that one
-- whose reply was lost is sent again and answered with the same.
--
-- KEYS workers: an object of number; since (ms); asked, parked: the answers to what it asked for and
-- parked; granted: ids of the parked tasks that it got; unsure: 'attempt task' of those it parked or sent
-- back, or was told are parked or have run, which it has acknowledged at the broker when its next call comes;
-- withdrawn: { task id, message } of those that left their line, which nobody else knows of any more; newest:
-- when the newest that it parked came, by its clock (ms), and its place in line; clock_off: how far its clock
-- is from the store's (ms); broker: the code of its broker; till: until when all this is kept (ms).
local KEPT_MS, CLOCK_SET_MS = 86400000, 1000

-- The part of a worker's name that no other has; all of it is kept only of who holds.
local function id_of(worker)
  return string.match(worker, '[^/]*$')
end

local function load_worker(worker)
  local packed = redis.call('HGET', WORKERS, worker)
  if not packed then return { number = 0 } end
  local known, why = readable(packed, 'worker')
  if known then return known end
  drop_unreadable(WORKERS, 'workers', worker, packed, why)
  return { number = 0 }
end

-- Whether a worker has acknowledged at the broker what a call told it is parked. One that is not known any
-- more said goodbye, or is gone for so long that the broker has delivered again what it had.
local function has_acknowledged(worker, call)
  local number = worker == state.worker and state.call_before or load_worker(worker).number
  return number == 0 or number > call
end

-- How much later than usual this call comes, by the clock of its worker: what is usual is the least, since a
-- busy machine makes calls late and none early. Clocks drift, so that may grow by 1 ms in a second; by a
-- second at once they were set.
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

-- What the clock of the worker shows, by which its tasks came.
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

-- The next call of a worker tells that it has acknowledged what it parked with the one before, but for
-- those that it says it could not (unacked).
local function confirm_parked(worker, before)
  if not before.unsure or redis.call('EXISTS', RAN) == 0 then return end
  for _, member in ipairs(before.unsure) do will_not_come(member, worker) end
end

-- What the caller has to know of the parked tasks it got: { task id, record, message } each.
local function told_of(tasks)
  local grants = {}
  for i, task in ipairs(tasks) do
    local record = state.saved[task] or redis.call('HGET', RECORDS, task)
    if record then grants[#grants + 1] = { task, record, redis.call('HGET', MESSAGES, task) or '' } end
  end
  return grants
end

-- The lease of what was granted and has not begun begins anew, with its lock; if that is another's by now,
-- the permit is given back. Returns whether it is held.
local function keep_grant(task, record, message)
  if record.lock and not renew_lock(task, record) then
    ended(task, record.nonce, false, message, 'nothing')
    return false
  end
  redis.call('ZADD', LEASES, NOW + LEASE_MS, task)
  return true
end

-- Those of these tasks that are still held by deliveries whose names begin so, and kept.
local function still_held(tasks, nonce)
  local held = {}
  for _, task in ipairs(tasks) do
    local record = load_record(task)
    local granted = record and record.nonce and string.sub(record.nonce, 1, #nonce) == nonce
    if granted and keep_grant(task, record, 'place') then held[#held + 1] = task end
  end
  return held
end
