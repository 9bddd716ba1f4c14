-- Return a page of the parked tasks, line by line, first come first.
-- KEYS, ARGV[1] as in shared/begin.lua; then limit (or limit \31 key; a limit includes all its keys), 1 for
-- all lines instead, how many at most, and where to go on ('' at first).
-- Returns { where to go on ('' after the last page), { { line, place, task id, record, head of its message },
-- ... } }; a line as in explain.lua. Writes nothing.
state.only_reads = true
local limit, all, most, after = argument(), argument() == '1', number(), object()
local rows, passed, passed_at = {}, {}, {}
for _, each in ipairs(passed_lanes(256)) do
  local at = load_lane(each.lane).at
  if at and not passed_at[at] then
    passed_at[at], passed[#passed + 1] = {}, at
  end
  if at then table.insert(passed_at[at], each) end
end

-- Kinds of lines:
--   buckets  the line of a bucket
--   passed   the line of a bucket whose lanes are all passed over
--   others   lines for nothing but a slot, or for a lock; their name is the reason to wait
local kinds = { { 'buckets', '[' .. limit .. '\0', '(' .. limit .. '\32' }, { 'passed' } }
if all then
  kinds = {
    { 'buckets', '-', '+' }, { 'passed' }, { 'others', '-', '[\1' },
    { 'others', '[follow:', '(follow;' }, { 'others', '[next:', '(next;' },
    { 'others', '[again:', '(again;' },
  }
end

-- Return the buckets whose lanes are all passed over, beginning with one of them.
local function passed_lines(from)
  local lines, begun = {}, not from
  for _, at in ipairs(passed) do
    if not first_at(at) and (all or limit_of(at) == limit or at == limit) then
      begun = begun or at == from
      if begun then lines[#lines + 1] = at end
    end
  end
  return lines
end

local function lines_of(kind, from)
  local what, first, last = unpack(kind)
  if what == 'passed' then return passed_lines(from) end
  -- Read one more than the rows, because the first line may have no further task.
  local key = what == 'buckets' and HEADS or LINES
  return names_from(key, from and '[' .. from .. '\0' or first, last, most + 1)
end

local function lanes_of(what, line)
  if what ~= 'others' then return lanes_at(line, 256, passed_at[line] or {}) end
  local lanes, from, last = {}, '[' .. line .. '\0', '(' .. line .. '\1'
  while #lanes < 256 do
    local found = redis.call('ZRANGEBYLEX', LINES, from, last, 'LIMIT', 0, 1)[1]
    local lane = found and string.match(found, '^[^%z]*%z[^%z]*')
    if not lane then break end
    lanes[#lanes + 1], from = { lane = lane }, '(' .. lane .. '\1'
  end
  return lanes
end

for number = after and after.kind or 1, #kinds do
  local from = after and after.kind == number and after.line or nil
  local lines, count, last = lines_of(kinds[number], from), 0, ''
  for _, line in ipairs(lines) do
    count, last = 0, ''
    if line == from then count, last = after.count, after.last end
    for _, placed in ipairs(first_in(lanes_of(kinds[number][1], line), most - #rows, last)) do
      count, last = count + 1, placed
      local task = string.sub(placed, 17)
      rows[#rows + 1] = { line, count, task, redis.call('HGET', RECORDS, task) or '', head_of(task) }
    end
    if #rows >= most then
      return { cjson.encode({ kind = number, line = line, count = count, last = last }), rows }
    end
  end
  if kinds[number][1] ~= 'passed' and #lines > most then
    return { cjson.encode({ kind = number, line = lines[#lines], count = count, last = last }), rows }
  end
end
return { '', rows }
