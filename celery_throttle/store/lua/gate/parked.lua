-- Say who is parked, line by line, first come first.
-- KEYS, ARGV[1] as in shared/begin.lua; then limit (or limit \31 key; with all its keys), 1 if all lines
-- are meant instead, and how many at most.
-- Returns { { line, place, task id, record, head of its message }, ... }; a line as in explain.lua. Writes
-- nothing.
state.only_reads = true
local limit, all, most = argument(), argument() == '1', number()
local rows = {}

local function add(line, lanes)
  for place, task in ipairs(first_in(lanes, most - #rows)) do
    if #rows >= most then return end
    rows[#rows + 1] = { line, place, task, redis.call('HGET', RECORDS, task) or '', head_of(task) }
  end
end

local function add_buckets(first, last)
  local buckets, known = names_from(HEADS, first, last, most), {}
  for _, bucket in ipairs(buckets) do known[bucket] = true end
  for _, each in ipairs(passed_lanes(256)) do
    local at = load_lane(each.lane).at
    if at and not known[at] and (all or limit_of(at) == limit or at == limit) then
      known[at] = true
      buckets[#buckets + 1] = at
    end
  end
  for _, bucket in ipairs(buckets) do
    if #rows < most then add(bucket, lanes_at(bucket, 256)) end
  end
end

-- Those who wait for a lock, or for nothing but a slot; what they wait for is what their lane is named by.
local function add_others(first, last)
  for _, what in ipairs(names_from(LINES, first, last, most)) do
    local lanes = {}
    local found = redis.call('ZRANGEBYLEX', LINES, '[' .. what .. '\0', '(' .. what .. '\1', 'LIMIT', 0, most)
    for _, member in ipairs(found) do
      local lane = string.match(member, '^[^%z]*%z[^%z]*')
      if lane and not lanes[lane] then lanes[lane], lanes[#lanes + 1] = true, { lane = lane } end
    end
    if #rows < most then add(what, lanes) end
  end
end

if all then
  add_buckets('-', '+')
  add_others('-', '[\1')
  add_others('[follow:', '(follow;')
  add_others('[next:', '(next;')
else
  add_buckets('[' .. limit .. '\0', '(' .. limit .. '\32')
end
return rows
