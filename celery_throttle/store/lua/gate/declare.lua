-- A worker is here (again): it says how many permits its limits have. The newest declaration holds; a
-- raised limit wakes who can start. A store that was emptied since grants nothing for a moment, until the
-- others have put back what they hold.
-- KEYS, ARGV[1] as in shared/begin.lua; then the birth that the worker knows ('' at its start), 1 if what
-- was declared before holds, for how long (ms) it could not reach the store (0: it does not know), code and
-- description of its broker ('' if it is no worker), name of the worker and all that it declares, as JSON
-- ('' if that is not to be kept), n, n x (limit, what is declared).
-- Returns { birth, limit, declared before, ... }: when the data of this store began; and those limits that
-- were declared otherwise.
-- The first write is never refused: else nothing could be given back on a new connection to a full store.
redis.call('ZREM', LEASES, '')
local known, keeps = argument(), argument() == '1'
state.away_ms = number()
local broker, description = argument(), argument()
local worker, everything = argument(), argument()
look_at_ended()
local birth = redis.call('HGET', META, 'birth')
if not birth or not is_digits(birth) then
  birth = string.format('%.0f', NOW_US)
  redis.call('HSET', META, 'birth', birth)
  hint('birth ' .. birth)
end
-- Whoever knew older data tells that this store was emptied, also when a worker that is new here came first.
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

local answer = { birth }
for _ = 1, number() do
  local limit, declared = argument(), argument()
  local before = redis.call('HGET', LIMITS, limit)
  if before and not is_digits(before) and not readable(before, 'rule') then before = nil end
  if keeps then
    if not before then redis.call('HSET', LIMITS, limit, declared) end
  elseif known ~= birth or not before then
    -- After a short loss of the connection, a worker must not overrule what a newer one has declared
    -- meanwhile.
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
