-- Return the runs of run-once tasks whose leases have ended, a page at a time, in no order.
-- KEYS, ARGV[1] as in shared/begin.lua; then where to go on ('' at first).
-- Returns { where to go on ('' after the last page), rows }. A row is { worker, runs as in
-- shared/lost_runs.lua, JSON, the identity lock of each run ('' or as in shared/locks.lua) }. A worker may
-- come twice.
-- Writes nothing.
state.only_reads = true
local after, rows = argument(), {}
local page = redis.call('HSCAN', META, after == '' and '0' or after, 'MATCH', 'lost:*', 'COUNT', 100)
for i = 1, #page[2], 2 do
  local lost, locks = readable(page[2][i + 1], 'lost'), {}
  for number, run in ipairs(lost and lost.runs or {}) do
    local lock = load_lock(run.identity)
    locks[number] = lock and cjson.encode(lock) or ''
  end
  if lost then rows[#rows + 1] = { string.sub(page[2][i], 6), cjson.encode(lost.runs), locks } end
end
return { page[1] == '0' and '' or page[1], rows }
