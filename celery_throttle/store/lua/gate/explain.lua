-- Say all that matters to one task: what it holds or waits for, who comes before it, and how its limits
-- stand.
-- KEYS, ARGV[1] as in shared/begin.lua; then task id.
-- Returns { now (ms), settling (ms), record ('' if it has none), end of its lease (ms, 0: none), line,
-- head of its message, lock ('' or as in shared/locks.lua), 1 if another delivery of it waits for this
-- one, { { queue, how many of it are before this task, until when it is passed over (ms, 0: it is not) },
-- ... }, rows of its limits as JSON, see shared/reading.lua, why it was set aside ('' if it was not) };
-- line: the bucket whose permits it waits for, '' for nothing but a slot, or as in shared/places.lua. Writes
-- nothing.
state.only_reads = true
local task = argument()
local record = record_in(redis.call('HGET', RECORDS, task) or '')
local aside = readable(redis.call('HGET', ASIDE, task) or '', 'aside')
local settling_ms = settling()
if not record then return { NOW, settling_ms, '', 0, '', '', '', 0, {}, '[]', aside and aside.why or '' } end

local function before(each)
  local rank = rule_of(load_lane(each.lane).at or '').fair and record.place or record.ticket
  return redis.call('ZLEXCOUNT', LINES, '[' .. each.lane .. '\0', '(' .. each.lane .. '\0' .. ordered(rank))
end

local lane, queues, limits = lane_of(record), {}, {}
local what, queue = parts_of(lane)
local line = load_lane(lane).at or what
if not record.nonce then
  local lanes = load_lane(lane).at and lanes_at(line, 256) or { { lane = lane, queue = queue, passed = 0 } }
  for _, each in ipairs(lanes) do queues[#queues + 1] = { each.queue, before(each), each.passed } end
end
for _, need in ipairs(needs_of(record.needs)) do limits[#limits + 1] = standing(need.bucket) end
local lock = record.lock and kept_lock(record.lock.identity)
return {
  NOW, settling_ms, cjson.encode(record), till_of(redis.call('ZSCORE', LEASES, task) or 0),
  line, head_of(task), lock and cjson.encode(lock) or '',
  record.second and 1 or 0, queues, cjson.encode(limits), aside and aside.why or '',
}
