-- Explain one task: its permits or its line, the tasks before it, and the state of its limits.
-- KEYS, ARGV[1] as in shared/begin.lua; then task id.
-- Returns { now (ms), settling (ms), record, lease, line, head, lock, second, queues, limits, aside }:
--   record  '' if there is none
--   lease   its end (ms, 0: none)
--   line    the bucket whose permits the task waits for; '' for nothing but a slot; else as in
--           shared/places.lua
--   head    of its message
--   lock    '' or as in shared/locks.lua
--   second  1 if another delivery of the task waits for this one
--   queues  { queue, how many of its tasks come first, until when it is passed over (ms, 0: it is not) } each
--   limits  rows as JSON, see shared/reading.lua
--   aside   why the task was set aside, '' if it was not
-- Writes nothing.
state.only_reads = true
local task = argument()
local record = record_in(redis.call('HGET', RECORDS, task) or '')
local aside = readable(redis.call('HGET', ASIDE, task) or '', 'aside')
local settling_ms = settling()
if not record then return { NOW, settling_ms, '', 0, '', '', '', 0, {}, '[]', aside and aside.why or '' } end

local function before(each)
  local rank = place_at(load_lane(each.lane).at or '', record)
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
