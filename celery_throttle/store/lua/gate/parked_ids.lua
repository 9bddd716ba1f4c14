-- List the parked tasks that need permits of a limit, or all, a page at a time, lane by lane.
-- KEYS, ARGV[1] as in shared/begin.lua; then limit (or limit \31 key; '' for all), where to go on ('' at
-- first), and how many at most.
-- Returns { where to go on ('' after the last page), { { task id, ticket (text), queue, kind }, ... } }.
-- Kinds: 'runs', 'waits' (for an identity lock or an outcome), 'told' (the task will not run, and a worker
-- only has to report that). Waiting permits outside of tasks are left out. Writes nothing.
state.only_reads = true
local limit, after, most = argument(), argument(), number()
local rows, from = {}, after == '' and '-' or after

local function is_meant(needs)
  for _, need in ipairs(needs_of(needs)) do
    if need.bucket == limit or limit_of(need.bucket) == limit then return true end
  end
  return limit == ''
end

local function what_of(what, record)
  if string.match(what, '^follow:') then return 'waits' end
  local verdict = record.lock and record.lock.verdict or 'run'
  return (record.expired or verdict ~= 'run' and verdict ~= 'next') and 'told' or 'runs'
end

-- Add a row for this member. Returns where to go on.
local function add(member)
  local what, queue, places, task = string.match(member, '^([^%z]*)%z([^%z]*)%z(%d+)%.(.*)$')
  if not task or #places % 16 ~= 0 then return '(' .. member end
  -- A lane of needs has them in its name; for other lanes the record has them.
  local by_name, record = string.match(what, '^%d'), nil
  if by_name and not is_meant(what) then return '[' .. what .. '\0' .. queue .. '\1' end
  if not by_name or string.sub(queue, 1, 1) == '~' then
    record = record_in(redis.call('HGET', RECORDS, task) or '')
    if not record or record.outside or not is_meant(record.needs) then return '(' .. member end
  end
  rows[#rows + 1] = { task, string.sub(places, -16), queue, record and what_of(what, record) or 'runs' }
  return '(' .. member
end

for _ = 1, 20 do
  local found = redis.call('ZRANGEBYLEX', LINES, from, '+', 'LIMIT', 0, math.min(50, most - #rows))
  if #found == 0 then return { #rows < most and '' or from, rows } end
  for _, member in ipairs(found) do
    from = add(member)
    if string.sub(from, 1, 1) == '[' then break end
  end
end
return { from, rows }
