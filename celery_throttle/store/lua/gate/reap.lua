-- Clear expired holders, oldest first, and hint to the workers that can start what waited for their permits.
-- KEYS, ARGV[1..4] as in common.lua (slots 0, no queues); then how many at most.
-- Returns { { task id, limit }, ... }; as many as asked for means that there may be more.
redis.call('ZREM', LEASES, '')
open_lines()
local cleared = {}
for i, reclaimed in ipairs(reap(tonumber(argument()))) do
  cleared[i] = { reclaimed[1], reclaimed[2][LIMIT] }
end
reap_locks(200)
for _, entry in ipairs(cleared) do
  if free_permits(entry[2]) > 0 then
    for _, head in ipairs(line_heads(entry[2])) do hint(head[3]) end
  end
end

-- Of identity locks that went with them: hints only, the caller has no slots.
for _, line in ipairs(joined) do promote(line) end

-- A killed worker cannot say goodbye, so what was kept for it goes after a day.
local DAY_MS = 86400000
if #cleared == 0 then
  local meta = redis.call('HGETALL', META)
  for i = 1, #meta, 2 do
    local at = string.match(meta[i], '^park:') and string.match(meta[i + 1], '^%S+ (%d+)')
      or string.match(meta[i], '^offer:') and string.match(meta[i + 1], '^(%d+) ')
      or string.match(meta[i], '^sweep:') and cjson.decode(meta[i + 1])[3] / 1000
    if at and tonumber(at) < NOW - DAY_MS then redis.call('HDEL', META, meta[i]) end
  end
end
return cleared
