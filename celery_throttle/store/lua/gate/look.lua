-- Start what can start: clear a few expired holders, then serve every line that has free permits, oldest ticket first.
-- KEYS, ARGV[1..4] as in common.lua.
-- Returns { 0, grants, wait_ms, more, emptied } as exchange.lua; wait_ms is at the latest when the next lease ends.
if redis.call('EXISTS', PARKED, LEASES) == 0 then return { 0, {}, 0, 0, {} } end
redis.call('ZREM', LEASES, '')
reap(64)

open_lines()
local limits, lock_lines = lines_between('[\4', '+', 'looked'), {}
if redis.call('ZRANGEBYLEX', PARKED, '-', '(\4', 'LIMIT', 0, 1)[1] then
  limits[#limits + 1] = '' -- those who wait for nothing but a slot
  lock_lines = lines_between('[\2', '(\4', 'looked_locks')
end
if #limits > 0 then
  anybody = true
  until_next_lease_ends()
end

-- With several lines, those who wait longest get the slots.
local stuck = {} -- lines whose first cannot start
while #limits > 1 and slots > 0 and settling_ms() == 0 do
  local first, at
  for _, limit in ipairs(limits) do
    if not stuck[limit] and free_permits(limit) > 0 then
      local head, left = turn_of(limit)
      if head and (not first or head[1] < first[1]) then first, at = head, limit end
      soon(left)
    end
  end
  if not first then break end
  local record = load_head(at, first)
  if record then
    local blocker = kept_by(at, first, record, free_permits(at), { moves = 0 })
    if not blocker then resume(first, record) end
    stuck[at] = blocker ~= nil
  end
end
for _, limit in ipairs(limits) do promote(limit) end
for _, line in ipairs(lock_lines) do promote(line) end
for _, limit in ipairs(joined) do promote(limit) end
return { 0, grants, wait_ms, more, emptied }
