-- Return the brokers that have workers here, and how many workers of each have called lately.
-- KEYS, ARGV[1] as in shared/begin.lua.
-- Returns { now (ms), { { code, description, workers that called within five minutes, the last call of any
-- (ms, 0: none for a day) }, ... }, kinds of sites of such workers }, of the first 1000 workers or so. Writes
-- nothing.
state.only_reads = true
local LATELY_MS = 300000

local workers, last, cursor, is_kind, kinds = {}, {}, '0', {}, {}
for _ = 1, 10 do
  local page = redis.call('HSCAN', WORKERS, cursor, 'COUNT', 100)
  for i = 2, #page[2], 2 do
    local known = readable(page[2][i], 'worker')
    local code, since = known and known.broker, known and known.since or 0
    if code and since > NOW - LATELY_MS then workers[code] = (workers[code] or 0) + 1 end
    for kind in pairs(since > NOW - LATELY_MS and known.sites or {}) do is_kind[kind] = true end
    if code then last[code] = math.max(last[code] or 0, since) end
  end
  cursor = page[1]
  if cursor == '0' then break end
end

local rows = {}
cursor = '0'
for _ = 1, 10 do
  local page = redis.call('HSCAN', META, cursor, 'MATCH', 'broker:*', 'COUNT', 1000)
  for i = 1, #page[2], 2 do
    local code = string.match(page[2][i], '^broker:(.*)$')
    rows[#rows + 1] = { code, page[2][i + 1], workers[code] or 0, last[code] or 0 }
  end
  cursor = page[1]
  if cursor == '0' then break end
end
for kind in pairs(is_kind) do kinds[#kinds + 1] = site_of(kind) end
return { NOW, rows, kinds }
