-- Next starts: finding the oldest parked task that can start in a slot of the caller.

-- Return the lane with the oldest task that is ready in the queues of the caller.
local function oldest_ready()
  local oldest, oldest_ticket, listed
  for _, queue in ipairs(state.queues) do
    local from, last = '[' .. queue .. '\0', '(' .. queue .. '\1'
    local found = state.oldest[queue] or redis.call('ZRANGEBYLEX', READY, from, last, 'LIMIT', 0, 1)[1] or ''
    state.oldest[queue] = found
    local ticket = string.sub(found, #queue + 2, #queue + 17)
    if found ~= '' and (not oldest or ticket < oldest_ticket) then
      oldest, oldest_ticket, listed = string.sub(found, #queue + 18), ticket, found
    end
  end
  return oldest, oldest_ticket, listed
end

-- Return the lane with the oldest task that can start here, among all ready lanes and those that became ready
-- in this call.
local function oldest_startable()
  local oldest, ticket, listed = oldest_ready()
  for lane, its in pairs(state.hot) do
    if not oldest or its < ticket then oldest, ticket, listed = lane, its, nil end
  end
  return oldest, listed
end

-- Return whether a lane is ready by this member of KEYS ready. Without a member, the lane became ready in
-- this call.
local function is_listed(lane, listed)
  if not listed then return true end
  local what, queue = parts_of(lane)
  local ticket = what and load_lane(lane).ticket
  return ticket and listed == queue .. '\0' .. ticket .. lane and first_of(lane) ~= nil
end

-- Drop a member of KEYS ready whose lane is not ready.
local function drop_listed(lane, listed)
  redis.call('ZREM', READY, listed)
  state.oldest = {}
  if parts_of(lane) and not waits_for_lock(lane) and first_of(lane) then list_again(lane) end
end
