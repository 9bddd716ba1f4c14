-- Say which parked task of each limit, all keys together, waits for longest.
-- KEYS, ARGV[1] as in shared/begin.lua; then n, n limits.
-- Returns { { bucket in whose line it is, task id, ticket as in shared/records.lua }, ... }, {} for a limit
-- in whose lines nobody stands. Where tasks take turns only those whose turn is next are compared. Writes
-- nothing.
local rows = {}
for i = 1, number() do
  local limit = argument()
  local from, last = '[' .. limit .. '\0', '(' .. limit .. '\1'
  local found = redis.call('ZRANGEBYLEX', OLDEST, from, last, 'LIMIT', 0, 1)[1]
  local lane = found and string.sub(found, #limit + 18)
  local first = lane and first_of(lane)
  rows[i] = first and { load_lane(lane).at or limit, first.task, first.ticket } or {}
end
return rows
