-- Renew the leases of all holders of a worker; a holder that the store lost is put back if there is room.
-- KEYS, ARGV[1] as in shared/begin.lua; ARGV[2] an object (JSON) of
--   worker   its name
--   number   of its last call when this one was built
--   birth    of the data that the worker knew then; may be left out
--   held     { task, nonce, needs, queue, attempt, lock, code, publication } each
--   waiting  task ids of its holders outside of tasks that wait
-- Returns { held, waiting, birth }: for each holder 1 renewed, 2 put back, 0 lost, 3 perhaps ended since; for
-- each that waits 1, or 0 if the store does not have it; and the birth of the data. If that is not the birth
-- above, the worker builds the call again.
redis.call('ZREM', LEASES, '')
local RENEWED, PUT_BACK, LOST, LATER = 1, 2, 0, 3
local report = object()
look_at_ended()
local birth = begin_data()

-- A later call may have reported the end of a holder. Data that has begun since does not have that call.
local function may_have_ended()
  return (report.birth or birth) ~= birth or load_worker(id_of(report.worker)).number > report.number
end

local function renew_held(arrival)
  local task, nonce = arrival.task, arrival.nonce
  local record = mend_record(task)
  if record and record.nonce then
    if record.nonce ~= nonce then return LOST end
    redis.call('ZADD', LEASES, NOW + LEASE_MS, task)
    return (not record.lock or renew_lock(task, record)) and RENEWED or LOST
  end
  if may_have_ended() then return LATER end
  local held = delivery_of(arrival)
  if held.lock then held.lock.fence = arrival.lock.fence end
  held.nonce = nonce
  if not fits(needs_of(takes(held))) then return LOST end
  if held.lock and not renew_lock(task, held) then return LOST end
  settle() -- judge its parked record again, which may have waited for another task
  if record then step_back(task, load_record(task)) end
  hold(task, held, nonce, false)
  return PUT_BACK
end

local function renew(arrival)
  local answer = renew_held(arrival)
  settle()
  if arrival.lock and answer == LOST then touch_lost_run(report.worker, arrival.nonce) end
  if arrival.lock and answer == PUT_BACK then forget_lost_run(report.worker, arrival.nonce) end
  return answer
end

local held, waiting = {}, {}
for i, arrival in ipairs(report.held) do held[i] = renew(arrival) end
for i, task in ipairs(report.waiting) do
  local record = load_record(task)
  waiting[i] = record and 1 or 0
  if record and not record.nonce then
    record.deadline = NOW + LEASE_MS
    redis.call('ZADD', DUE, record.deadline, 'task:' .. task)
    save_record(task, record)
  end
end
serve()
return { held, waiting, birth }
