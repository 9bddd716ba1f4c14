-- Renew the leases of everything a worker holds; a holder that the store lost puts itself back if there is room.
-- KEYS, ARGV[1..4] as in common.lua; then n, n x (task id, nonce, limit, permits, attempt, lock, more).
-- Returns a list with an answer for each: 1 renewed, 2 put back, 0 lost.
redis.call('ZREM', LEASES, '')

-- Another delivery (or this one's message, put back in line when its lease ended) waits for this one after all.
local function step_back(task, record)
  local twin = load_record('\0' .. task)
  leave_line(task, record)
  if not twin or record[ATTEMPT] > twin[ATTEMPT] then
    record[STATE] = 'T'
    save_record('\0' .. task, record)
    redis.call('HSET', MESSAGES, '\0' .. task, redis.call('HGET', MESSAGES, task) or '')
  end
  redis.call('HDEL', MESSAGES, task)
end

local function fits(held)
  for _, need in ipairs(held[MORE] and held[MORE].n or { { held[LIMIT], 1 } }) do
    if unused(need[1]) < math.min(need[2], math.max(permits_of(need[1]), 1)) then return false end
  end
  return true
end

local function renew(task, nonce, limit, permits, attempt, spec, more)
  local record = load_record(task)
  if record and record[STATE] == 'H' then
    if record[NONCE] ~= nonce then return 0 end
    redis.call('ZADD', LEASES, NOW + LEASE_MS, task)
    return (not record[LOCK] or renew_lock(task, record)) and 1 or 0
  end
  if limit ~= '' then declare_limit(limit, permits) end
  if more and more.n then declare_needs(more.n) end
  local held = { 'H', nonce, limit, attempt, '', '', 0, spec or more and false, more }
  if counted(held) and not fits(held) then return 0 end
  if spec and not renew_lock(task, held) then return 0 end
  if record then step_back(task, record) end
  hold(task, held, nonce, false)
  return 2
end

local answers = {}
for i = 1, tonumber(argument()) do
  local task, nonce, limit, permits, attempt = argument(), argument(), argument(), argument(), tonumber(argument())
  local spec, more = decoded(argument()), unpacked(argument())
  answers[i] = renew(task, nonce, limit, permits, attempt, spec, more)
end
return answers
