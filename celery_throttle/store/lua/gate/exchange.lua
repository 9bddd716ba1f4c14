-- Give back permits, ask for permits and take what is next in line, in one call: the gate's tick.
-- KEYS, ARGV[1..4] as in common.lua; then
--   n, n x (task id, nonce, outcome)                       permits given back
--   n, n x (task id, nonce)                                started early-ack tasks: the message is not needed any more
--   n, n x (task id, nonce, limit, permits, attempt, lock, more) permits asked for; limit '' is none, permits as in KEYS[1],
--     lock '' or as in locks.lua, more '' or as in rules.lua, with the permits of each limit after what it takes of it
-- Returns { answers, grants, wait_ms, more, emptied }: an answer for each permit asked for: 1 granted, 3 granted and
-- it was the last free one, 0 must be parked, 2 already parked (a second delivery), or for one with an identity lock
-- its fencing token in place of 1 and 3; grants of parked tasks { task id,
-- nonce, limit, attempt, ticket, queue, deliveries, message, lock, more }; wait_ms: ask again after that (0: no need); more: 1 if
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

local function admit(task, nonce, limit, permits, attempt, spec, more)
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
  if limit ~= '' then declare_limit(limit, permits) end
  local held = { 'H', nonce, limit, attempt, '', '', 0, spec or more and false, more }
  local last = false
  if settling_ms() > 0 then return 0 end
  if more and more.n then
    declare_needs(more.n)
    if blocked_by('', task, held) then return 0 end
  else
    local free = free_permits(limit)
    if free <= 0 or barred(limit, task, '') then return 0 end
    local head, left = next_parked(limit)
    if head or left ~= 0 then return 0 end
    last = free == 1
  end
  hold(task, held, nonce, true)
  return spec and spec[FENCE] or last and 3 or 1
end

local answers = {}
for i = 1, tonumber(argument()) do
  local task, nonce, limit, permits, attempt = argument(), argument(), argument(), argument(), tonumber(argument())
  local spec, more = decoded(argument()), unpacked(argument())
  answers[i] = admit(task, nonce, limit, permits, attempt, spec, more)
  if answers[i] == 0 or answers[i] == 2 then
    -- It will not run now: its slot is for whoever's turn it is.
    slots = slots + 1
    freed[#freed + 1] = limit
    for _, need in ipairs(more and more.n or {}) do freed[#freed + 1] = need[1] end
  end
end
for _, limit in ipairs(freed) do promote(limit) end
for _, limit in ipairs(joined) do promote(limit) end
return { answers, grants, wait_ms, more, emptied }
