-- Set tasks aside with their messages; whoever's turn it is on their limits gets the caller's slots.
-- KEYS, ARGV[1..4] as in common.lua; then worker id, call number (grows per worker, one call at a time), n,
--   n x (task id, limit, permits, attempt, queue, message, lock).
-- Returns { parked, grants, wait_ms, more, emptied }: parked is 1, or 0 if this very call had been carried out before (its
-- reply was lost); the rest as in exchange.lua. The first write needs memory: a full store refuses the call whole.
local worker, call = argument(), argument()

local function park(task, limit, permits, attempt, queue, message, spec)
  local record = load_record(task)
  if not record then
    redis.call('HSET', MESSAGES, task, message)
    record = { 'P', '', limit, attempt, next_ticket(), queue, 0, spec }
    if spec and settling_ms() == 0 then judge_record(task, record) end
    enqueue(task, record)
  elseif record[STATE] == 'H' then
    local twin = load_record('\0' .. task)
    if not twin or attempt > twin[ATTEMPT] then
      redis.call('HSET', MESSAGES, '\0' .. task, message)
      save_record('\0' .. task, { 'T', '', limit, attempt, twin and twin[TICKET] or next_ticket(), queue, 0, spec })
    end
  elseif attempt > record[ATTEMPT] then
    redis.call('HSET', MESSAGES, task, message)
    record[ATTEMPT] = attempt
    save_record(task, record)
  end
  if limit ~= '' then redis.call('HSETNX', LIMITS, limit, permits) end
  return line_of(record)
end

local before = redis.call('HGET', META, 'park:' .. worker)
if before and string.match(before, '^%S+') == call then return { 0, {}, 0, 0, {} } end
local limits = {}
for i = 1, tonumber(argument()) do
  local task, limit, permits, attempt = argument(), argument(), argument(), tonumber(argument())
  limits[i] = park(task, limit, permits, attempt, argument(), argument(), decoded(argument()))
end
redis.call('HSET', META, 'park:' .. worker, call .. ' ' .. string.format('%.0f', NOW))
for _, limit in ipairs(limits) do promote(limit) end
for _, limit in ipairs(joined) do promote(limit) end
return { 1, grants, wait_ms, more, emptied }
