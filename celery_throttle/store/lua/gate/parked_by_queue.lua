-- Count the parked tasks of each queue, a page of lanes at a time.
-- KEYS, ARGV[1] as in shared/begin.lua; then where to go on ('' at first), how many lanes at most.
-- Returns { where to go on ('' after the last page), { { queue, tasks, ticket (text) of the first }, ... } }:
-- a row for each lane. Writes nothing.
state.only_reads = true
local from, most = argument(), number()
local rows = {}
for _ = 1, most do
  local found = redis.call('ZRANGEBYLEX', LINES, from == '' and '-' or from, '+', 'LIMIT', 0, 1)[1]
  if not found then return { '', rows } end
  local lane, queue, places = string.match(found, '^([^%z]*%z([^%z]*))%z(%d*)')
  if not lane then
    from = '(' .. found -- the member names no task
  else
    from = '(' .. lane .. '\1'
    if #places > 0 and #places % 16 == 0 then
      local tasks = redis.call('ZLEXCOUNT', LINES, '[' .. lane .. '\0', from)
      rows[#rows + 1] = { queue, tasks, string.sub(places, -16) }
    end
  end
end
return { from, rows }
