-- Say all that matters to one task: what it holds or waits for, who comes before it, and how its limits stand.
-- KEYS, ARGV[1..4] as in common.lua (slots 0); then task id.
-- Returns { now (ms), settling (ms), record ('' if it has none), end of its lease (ms, 0: none), 1 if it holds permits or waits
-- for some, line, head of its message, lock ('' or as in locks.lua), 1 if another delivery of it waits for this one,
-- { { queue, how many of it are before this task, its offer ('' or as in KEYS[7]) }, ... }, rows of its limits as in reading.lua }.
-- Writes nothing.
local task = argument()
open_lines()
local record = load_record(task)
local settling = math.max(tonumber(redis.call('HGET', META, 'settling') or 0) - NOW, 0)
if not record then return { NOW, settling, '', 0, 0, '', '', '', 0, {}, {} } end

local line, queues, limits = line_of(record), {}, {}
if record[STATE] == 'P' then
  for _, head in ipairs(line_heads(line)) do
    local from = line .. '\0' .. head[3] .. '\0'
    queues[#queues + 1] = {
      head[3], redis.call('ZLEXCOUNT', PARKED, '[' .. from, '(' .. from .. record[TICKET]),
      redis.call('HGET', META, 'offer:' .. line .. '\0' .. head[3]) or '',
    }
  end
end
for _, need in ipairs(record[MORE] and record[MORE].n or { { record[LIMIT] } }) do
  if need[1] ~= '' then limits[#limits + 1] = standing(need[1]) end
end
return {
  NOW, settling, redis.call('HGET', RECORDS, task), tonumber(redis.call('ZSCORE', LEASES, task) or 0), counted(record) and 1 or 0,
  line, head_of(task), record[LOCK] and redis.call('HGET', LOCKS, record[LOCK][IDENTITY]) or '',
  redis.call('HEXISTS', RECORDS, '\0' .. task), queues, limits,
}
