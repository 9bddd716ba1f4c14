-- Give back permits, ask for permits and take what is next in line, in one call: the gate's tick.
-- KEYS, ARGV[1..4] as in common.lua; then
--   n, n x (task id, nonce, outcome)                       permits given back
--   n, n x (task id, nonce)                                started early-ack tasks: the message is not needed any more
--   n, n x (task id, nonce, limit, permits, attempt, lock) permits asked for; limit '' is none, lock '' or as in locks.lua
-- Returns { answers, grants, wait_ms, more, emptied }: an answer for each permit asked for: 1 granted, 3 granted and
-- it was the last free one, 0 must be parked, 2 already parked (a second delivery), or for one with an identity lock
-- its fencing token in place of 1 and 3; grants of parked tasks { task id,
-- nonce, limit, attempt, ticket, queue, deliveries, message, lock }; wait_ms: ask again after that (0: no need); more: 1 if
-- slots ran out; emptied: limits that have a free permit and nobody in line whom the caller could start.
local released, freed = {}, {}
local count = tonumber(argument())
for i = 1, count do released[i] = { argument(), argument(), argument() } end
-- The first write is never refused, not even by a full store, so that a permit can always be given back.
redis.call('ZREM', LEASES, '')
for _, r in ipairs(released) do
  local record = release(r[1], r[2], r[3])
  if record then freed[#freed + 1] = record[LIMIT] end
end

for _ = 1, tonumber(argument()) do
  local task, nonce = argument(), argument()
  local record = load_record(task)
  if record and record[NONCE] == nonce then redis.call('HDEL', MESSAGES, task) end
end

for _, reclaimed in ipairs(reap(8)) do freed[#freed + 1] = reclaimed[2][LIMIT] end

local function admit(task, nonce, limit, permits, attempt, spec)
  local record = load_record(task)
  if record and record[STATE] == 'H' then
    if record[NONCE] == nonce then
      redis.call('ZADD', LEASES, NOW + LEASE_MS, task)
      if record[LOCK] then renew_lock(task, record) end
      return record[LOCK] and record[LOCK][FENCE] or 1
    end
    local till = tonumber(redis.call('ZSCORE', LEASES, task) or 0)
    if till > NOW then return 0 end
    freed[#freed + 1] = reclaim(task)[LIMIT]
    record = load_record(task)
  end
  if record then return attempt > record[ATTEMPT] and 0 or 2 end
  -- The lock comes before the permit, so nobody waits for a lock while holding a permit.
  if spec and (settling_ms() > 0 or judge(task, spec) ~= 'run') then return 0 end
  if limit ~= '' then redis.call('HSETNX', LIMITS, limit, permits) end
  local free = free_permits(limit)
  if free <= 0 or settling_ms() > 0 then return 0 end
  local head, left = next_parked(limit)
  if head or left > 0 then return 0 end
  local held = { 'H', nonce, limit, attempt, '', '', 0, spec }
  hold(task, held, nonce)
  return spec and spec[FENCE] or free == 1 and 3 or 1
end

local answers = {}
for i = 1, tonumber(argument()) do
  local task, nonce, limit, permits, attempt = argument(), argument(), argument(), argument(), tonumber(argument())
  answers[i] = admit(task, nonce, limit, permits, attempt, decoded(argument()))
  if answers[i] == 0 or answers[i] == 2 then
    -- It will not run now: its slot is for whoever's turn it is.
    slots = slots + 1
    freed[#freed + 1] = limit
  end
end
for _, limit in ipairs(freed) do promote(limit) end
for _, limit in ipairs(joined) do promote(limit) end
return { answers, grants, wait_ms, more, emptied }
