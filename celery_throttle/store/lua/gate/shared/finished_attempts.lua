-- Finished attempts: those that are over while a message of theirs may still come from the broker: it is
-- dropped then.
--
-- KEYS ran: an object of what may come: the nonces of deliveries that the broker keeps, until it is said that
-- they were acknowledged; the ids of workers whose next call tells that they have acknowledged theirs;
-- 'again', if one is known to come.
local RAN_MS = 86400000

local function load_ran(member)
  local packed = redis.call('HGET', RAN, member)
  local left, why = readable(packed or '{}', 'counts')
  if not left then note_unreadable(RAN, 'ran', member, packed, why) end
  return packed and left or nil
end

local function save_ran(member, left)
  if next(left) then
    redis.call('HSET', RAN, member, cjson.encode(left))
    redis.call('ZADD', ENDS, NOW + RAN_MS, 'ran:' .. member)
    redis.call('PEXPIRE', RAN, RAN_MS)
  else
    redis.call('HDEL', RAN, member)
    redis.call('ZREM', ENDS, 'ran:' .. member)
  end
end

local function has_run(task, attempt)
  return redis.call('HEXISTS', RAN, attempt .. ' ' .. task) == 1
end

-- A message that is not acknowledged at the broker may be delivered again: know that something came of it.
-- Else one more run does no harm, and a task that was replaced (self.replace) has given its id to another.
local function note_ran(task, record, comes_again)
  local coming = { again = comes_again and 1 or nil }
  for nonce in pairs(record.unacked or {}) do coming[nonce] = 1 end
  for worker, call in pairs(record.told or {}) do
    if not has_acknowledged(worker, call) then coming[worker] = 1 end
  end
  if not next(coming) then return end
  local member = (record.attempt or 0) .. ' ' .. task
  local left = load_ran(member) or {}
  for name in pairs(coming) do left[name] = 1 end
  save_ran(member, left)
end

-- Whether a delivery is of an attempt that is over: then its worker is told so, and acknowledges it.
local function tell_if_ran(task, attempt)
  if not has_run(task, attempt) then return false end
  note_ran(task, { attempt = attempt, told = { [state.worker] = state.call } }, false)
  return true
end

-- This will not come any more.
local function will_not_come(member, name)
  local left = load_ran(member)
  if not left then return end
  left[name] = nil
  save_ran(member, left)
end

-- The next call of a worker tells that it has acknowledged what it parked with the one before, but for
-- those that it says it could not (unacked).
local function confirm_parked(worker, before)
  if not before.unsure or redis.call('EXISTS', RAN) == 0 then return end
  for _, member in ipairs(before.unsure) do will_not_come(member, worker) end
end
