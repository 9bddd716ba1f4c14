-- Start what can start: clear a few expired holders, then serve every line that has free permits, oldest ticket first.
-- KEYS, ARGV[1..4] as in common.lua.
-- Returns { 0, grants, wait_ms, more, emptied } as exchange.lua; wait_ms is at the latest when the next lease ends.
if redis.call('EXISTS', PARKED, LEASES) == 0 then return { 0, {}, 0, 0, {} } end
redis.call('ZREM', LEASES, '')
reap(64)

open_lines()
local limits, has_all = lines_between('[\4', '+', 'looked')
local lock_lines = {}
if redis.call('ZRANGEBYLEX', PARKED, '-', '(\4', 'LIMIT', 0, 1)[1] then
  limits[#limits + 1] = '' -- those who wait for nothing but a slot
  lock_lines = lines_between('[\2', '(\4', 'looked_locks')
end
if #limits > 0 then
  anybody = true
  until_next_lease_ends()
end

-- Something was said of a limit, and there are more lines than one look serves: the next ones of that limit too, see wake.lua.
local sweep
for queue in pairs(has_all and {} or mine) do
  local kept = redis.call('HGET', META, 'sweep:' .. queue)
  if kept then
    sweep = { field = 'sweep:' .. queue, bounds = cjson.decode(kept) }
    break
  end
end
if sweep then
  local lines, known = lines_from(sweep.bounds[1], sweep.bounds[2], MAX_LINES), {}
  for _, limit in ipairs(limits) do known[limit] = true end
  for _, line in ipairs(lines) do
    if not known[line] then limits[#limits + 1] = line end
  end
  sweep.last = #lines == MAX_LINES and lines[#lines]
end

-- With several lines, those who wait longest get the slots.
local heads, stuck = {}, {} -- who is first in each line that has room; lines whose first cannot start

local function see(limit)
  heads[limit] = nil
  if stuck[limit] or free_permits(limit) <= 0 then return end
  local head, left = turn_of(limit)
  heads[limit] = head
  soon(left)
end

local in_turn = #limits > 1 and slots > 0 and settling_ms() == 0
for _, limit in ipairs(in_turn and limits or {}) do see(limit) end
while in_turn and slots > 0 do
  local first, at
  for _, limit in ipairs(limits) do
    local head = heads[limit]
    if head and (not first or head[1] < first[1]) then first, at = head, limit end
  end
  if not first then break end
  -- What has started since this line was seen may have changed it, or taken its last permit.
  see(at)
  local head = heads[at]
  if head and head[2] == first[2] then
    local record = load_head(at, head)
    if record then
      local blocker = kept_by(at, head, record, free_permits(at), { moves = 0 })
      if not blocker then resume(head, record) end
      stuck[at] = blocker ~= nil
    end
    see(at)
  end
end
for _, limit in ipairs(limits) do promote(limit) end
for _, line in ipairs(lock_lines) do promote(line) end
for _, limit in ipairs(joined) do promote(limit) end
if sweep then
  -- Without a slot left, some of these lines may have to be looked at again.
  if slots > 0 then sweep.bounds[1] = sweep.last and '(' .. sweep.last .. '\1' end
  if sweep.bounds[1] then
    redis.call('HSET', META, sweep.field, cjson.encode(sweep.bounds))
    more = 1
  else
    redis.call('HDEL', META, sweep.field)
  end
end
return { 0, grants, wait_ms, more, emptied }
