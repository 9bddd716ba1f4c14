-- Lost runs: runs of run-once tasks whose leases have ended. A frozen worker may still finish such a run.
-- Operators can list the run until its worker reports the end or leaves, for a day at most.
--
-- For each worker META keeps its newest lost runs, under 'lost:' and its name: an object of v (VERSION) and
-- runs, objects of
--   task, identity, nonce
--   renewed   when the lease was renewed last (ms)
--   called    when the worker renewed the run after that (ms, 0: never)
local LOST_KEPT = 20

local function lost_runs_of(worker)
  local field = 'lost:' .. worker
  local packed = redis.call('HGET', META, field)
  if not packed then return nil end
  local lost, why = readable(packed, 'lost')
  if not lost then note_unreadable(META, 'meta', field, packed, why) end
  return lost
end

local function save_lost_runs(worker, lost)
  local field = 'lost:' .. worker
  if #lost.runs == 0 then
    redis.call('HDEL', META, field)
    redis.call('ZREM', ENDS, 'meta:' .. field)
  else
    redis.call('HSET', META, field, cjson.encode(lost))
    redis.call('ZADD', ENDS, NOW + KEPT_MS, 'meta:' .. field)
  end
end

-- The lease of a run has ended. A worker that has left has also ended its runs.
local function note_lost_run(task, record, till)
  local plan = record.lock
  if not plan or plan.verdict ~= 'run' or plan.lock_until == 'started' or record.lent then return end
  local worker = string.match(record.nonce, '^[^:]*')
  if load_worker(id_of(worker)).number % 1 ~= 0 then return end
  local lost = lost_runs_of(worker) or { v = VERSION, runs = {} }
  local runs = lost.runs
  runs[#runs + 1] = {
    task = task, identity = plan.identity, nonce = record.nonce, renewed = math.max(till - LEASE_MS, 0),
    called = 0,
  }
  if #runs > LOST_KEPT then table.remove(runs, 1) end
  save_lost_runs(worker, lost)
end

-- Return the lost runs of a worker, and the position of the one with this nonce; nil if there is none.
local function lost_run_at(worker, nonce)
  local lost = lost_runs_of(worker)
  for i, run in ipairs(lost and lost.runs or {}) do
    if run.nonce == nonce then return lost, i end
  end
end

-- The run of this nonce has ended, or has its permits again. Returns its identity, if the run was lost.
local function forget_lost_run(worker, nonce)
  local lost, i = lost_run_at(worker, nonce)
  if not lost then return nil end
  local run = table.remove(lost.runs, i)
  save_lost_runs(worker, lost)
  return run.identity
end

-- The worker renews this run, whose permits belong to another task.
local function touch_lost_run(worker, nonce)
  local lost, i = lost_run_at(worker, nonce)
  if not lost then return end
  lost.runs[i].called = NOW
  save_lost_runs(worker, lost)
end
