-- A worker is here (again): it says how many permits its limits have. The newest declaration holds; a raised limit wakes
-- who can start. A store that was emptied since grants nothing for a moment, until the others have put back what they hold.
-- KEYS, ARGV[1..4] as in common.lua (slots 0); then the birth the worker knows ('' at its start), n, n x (limit, permits).
-- Returns { birth, limit, permits before, ... }: when the data of this store began; and those limits that had been declared
-- otherwise.
local SETTLE_MS = 4000
open_lines()
local known = argument()
local birth = redis.call('HGET', META, 'birth')
if not birth then
  birth = string.format('%.0f', NOW)
  redis.call('HSET', META, 'birth', birth)
end
-- Whoever knew older data tells that this store was emptied, also when a worker that is new here came first.
local settled = tonumber(birth) + SETTLE_MS
if known ~= '' and known ~= birth and NOW < settled then
  redis.call('HSET', META, 'settling', string.format('%.0f', settled))
end

local answer = { birth }
for _ = 1, tonumber(argument()) do
  local limit, permits = argument(), argument()
  local before = redis.call('HGET', LIMITS, limit)
  -- After a short loss of the connection, a worker must not overrule what a newer one has declared meanwhile.
  if known ~= birth then redis.call('HSET', LIMITS, limit, permits) end
  if known ~= birth and before and permits ~= before then
    answer[#answer + 1] = limit
    answer[#answer + 1] = before
    local fewer = tonumber(permits) and tonumber(before) and tonumber(permits) < tonumber(before)
    if not fewer then hint_all(limit) end
  end
end
return answer
