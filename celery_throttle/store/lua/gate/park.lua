-- Set tasks aside with their messages; whoever's turn it is on their limits gets the caller's slots.
-- KEYS, ARGV[1..4] as in common.lua; then worker id, call number (grows per worker, one call at a time), n,
--   n x (task id, limit, permits, attempt, queue, message, lock, more).
-- Returns { parked, grants, wait_ms, more, emptied, refused }: parked is 1, or 0 if this very call had been carried out before
-- (its reply was lost); refused says which of the tasks (1..n) were not set aside, because as many wait as may; the rest as in
-- exchange.lua. The first write needs memory: a full store refuses the call whole.
local worker, call = argument(), argument()

local function park(task, limit, permits, attempt, queue, message, spec, more)
  local record = load_record(task)
  if limit ~= '' then declare_limit(limit, permits) end
  if more then
    if more.n then declare_needs(more.n) end
    if more.o then more.d = LEASE_MS end
    if more.d then
      soon(more.d + 5)
      more.d = NOW + more.d
    end
  end
  if not record then
    permits_of(limit)
    if (more or rules[limit]) and is_full(limit, more and more.n) then return nil end
    redis.call('HSET', MESSAGES, task, message)
    local ticket = more and more.f and fair_ticket(more.f) or next_ticket()
    record = { 'P', '', limit, attempt, ticket, queue, 0, spec or more and false, more }
    if more and more.n then record[LIMIT] = blocked_by('', task, record) or limit end
    if spec and settling_ms() == 0 then judge_record(task, record) end
    enqueue(task, record)
  elseif record[STATE] == 'H' then
    local twin = load_record('\0' .. task)
    if not twin or attempt > twin[ATTEMPT] then
      redis.call('HSET', MESSAGES, '\0' .. task, message)
      local ticket = twin and twin[TICKET] or next_ticket()
      save_record('\0' .. task, { 'T', '', limit, attempt, ticket, queue, 0, spec or more and false, more })
    end
  elseif attempt > record[ATTEMPT] then
    redis.call('HSET', MESSAGES, task, message)
    record[ATTEMPT] = attempt
    save_record(task, record)
  end
  return line_of(record)
end

local before = redis.call('HGET', META, 'park:' .. worker)
if before and string.match(before, '^%S+') == call then
  local refused = {}
  for i in string.gmatch(string.match(before, '^%S+ %S+(.*)'), '%d+') do refused[#refused + 1] = tonumber(i) end
  return { 0, {}, 0, 0, {}, refused }
end
local limits, refused = {}, {}
for i = 1, tonumber(argument()) do
  local task, limit, permits, attempt = argument(), argument(), argument(), tonumber(argument())
  local queue, message, spec, more = argument(), argument(), decoded(argument()), unpacked(argument())
  local line = park(task, limit, permits, attempt, queue, message, spec, more)
  limits[#limits + 1] = line
  if not line then refused[#refused + 1] = i end
end
local said = table.concat({ call, string.format('%.0f', NOW), unpack(refused) }, ' ')
redis.call('HSET', META, 'park:' .. worker, said)
for _, limit in ipairs(limits) do promote(limit) end
for _, limit in ipairs(joined) do promote(limit) end
return { 1, grants, wait_ms, more, emptied, refused }
