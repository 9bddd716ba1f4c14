-- Declare the limits of a worker that has connected (again). The newest declaration holds, and a raised limit
-- lets waiting tasks start. A store that was emptied grants nothing for a moment, until the other workers
-- have put their holders back.
-- KEYS, ARGV[1] as in shared/begin.lua; then
--   the birth that the worker has ('' at its start)
--   1 if earlier declarations stay
--   for how long the worker could not reach the store (ms, 0: unknown)
--   code and description of its broker ('' if the caller is no worker)
--   name of the worker, and all its declarations as JSON ('' if that is not to be stored)
--   how often a task may begin ('' if the caller is no worker)
--   n, n x (limit, its declaration)
-- Returns { birth, limit, declared before, ... }: when the data of this store began, and the limits whose
-- declaration has changed.
-- The first write is never refused: otherwise a new connection to a full store could give nothing back.
redis.call('ZREM', LEASES, '')
local known, keeps = argument(), argument() == '1'
state.away_ms = number()
local broker, description = argument(), argument()
local worker, everything, begins = argument(), argument(), argument()
look_at_ended()
local birth = begin_data()
-- A caller with an older birth shows that this store was emptied, even if a new worker came first.
local settled = math.min(tonumber(birth) / 1000, NOW) + SETTLE_MS
if known ~= '' and known ~= birth and NOW < settled then
  redis.call('HSET', META, 'settling', string.format('%.0f', settled))
end

local function keep(field, value)
  redis.call('HSET', META, field, value)
  redis.call('ZADD', ENDS, NOW + KEPT_MS, 'meta:' .. field)
end

if broker ~= '' then keep('broker:' .. broker, description) end
if worker ~= '' then keep('declared:' .. worker, everything) end

if begins ~= '' then redis.call('HSET', META, 'begins', begins) end

local answer = { birth }
for _ = 1, number() do
  local limit, declared = argument(), argument()
  local before = redis.call('HGET', LIMITS, limit)
  if before and not is_digits(before) and not readable(before, 'rule') then before = nil end
  if keeps then
    if not before then redis.call('HSET', LIMITS, limit, declared) end
  elseif known ~= birth or not before then
    -- A worker that lost its connection for a short time must not overrule a newer declaration.
    redis.call('HSET', LIMITS, limit, declared)
    if before and before ~= declared then
      answer[#answer + 1] = limit
      answer[#answer + 1] = before
    end
    if before ~= declared then go_on_after(limit, '') end
  end
end
settle()
hint_ready()
return answer
