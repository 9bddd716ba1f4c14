-- Audit: changes that people made at run time, with author, time and reason. Only the newest are kept.
--
-- KEYS audit: objects of
--   v               VERSION
--   number          of the change, text, also its score
--   at              (ms)
--   action          'override', 'pause', 'disable', their ends ('reset', 'resume', 'enable'), 'release-hold',
--                   'drop', 'drain' or 'unlock'
--   by, why         author and reason
-- and, where they apply:
--   bucket          the changed bucket
--   before, after   its override, until then and from then on, as in runtime_overrides.lua; of an override of
--                   rates they are the sixth item
--   permits_before, permits_after  in force (-1: any number)
--   rates_before, rates_after      in force
--   task, name      id and name of the task whose lock was taken away; id of the dropped task
--   tasks           how many tasks were dropped or drained
--   request         names a request that was sent to several workers
local CHANGES_KEPT = 200

local function note_change(change)
  change.v, change.number, change.at = VERSION, next_stamp(), NOW
  redis.call('ZADD', AUDIT, change.number, cjson.encode(change))
  local oldest = redis.call('ZRANGE', AUDIT, 0, -1 - CHANGES_KEPT)
  for _, member in ipairs(oldest) do redis.call('ZREM', AUDIT, member) end
end

-- Store a change that takes several calls: so many parked tasks more. number: that of the change, '' at
-- first. Returns the number of the change from now on.
local function note_tasks(change, tasks, number)
  local begun = number ~= '' and redis.call('ZRANGEBYSCORE', AUDIT, number, number)[1]
  if begun then
    redis.call('ZREM', AUDIT, begun)
    local so_far = readable(begun, 'change')
    tasks = tasks + (so_far and so_far.tasks or 0)
  end
  change.tasks = tasks
  note_change(change)
  return change.number
end

-- Return the buckets that were changed for a request, nil if there are none.
local function changed_for(request)
  local buckets = nil
  for _, packed in ipairs(redis.call('ZRANGE', AUDIT, 0, -1)) do
    local change = readable(packed, 'change')
    if change and change.request == request then
      buckets = buckets or {}
      buckets[change.bucket or ''] = true
    end
  end
  return buckets
end

local function permits_in_force(bucket)
  local permits = rule_of(bucket).permits
  return permits < ANY_NUMBER and permits or -1
end
