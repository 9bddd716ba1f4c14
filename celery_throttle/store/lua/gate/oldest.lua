-- Return the parked task of each limit, all keys together, that waits for longest.
-- KEYS, ARGV[1] as in shared/begin.lua; then n, n limits.
-- Returns { { bucket of its line, task id, ticket as in shared/records.lua }, ... }, {} for a limit without
-- waiting tasks. Where tasks take turns, only those whose turn is next are compared. Writes nothing.
state.only_reads = true
local rows = {}
for i = 1, number() do
  local limit = argument()
  local from, last = '[' .. limit .. '\0', '(' .. limit .. '\1'
  rows[i] = {}
  -- Later members count only if the first ones are wrong.
  for _, found in ipairs(redis.call('ZRANGEBYLEX', OLDEST, from, last, 'LIMIT', 0, 4)) do
    local lane = string.sub(found, #limit + 18)
    local first = first_of(lane)
    if first then
      rows[i] = { load_lane(lane).at or limit, first.task, first.ticket }
      break
    end
  end
end
return rows
