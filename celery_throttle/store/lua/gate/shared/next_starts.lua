-- Next starts: finding the oldest parked task that can start in a slot of the caller.

-- Return the lane with the oldest task that is ready in the queues and for the sites of the caller.
local function oldest_ready()
  local oldest, oldest_ticket, listed
  for _, section in ipairs(state.sites and sections_here() or stocked_queues()) do
    local from, last = '[' .. section .. '\0', '(' .. section .. '\1'
    local found = state.oldest[section]
    found = found or redis.call('ZRANGEBYLEX', READY, from, last, 'LIMIT', 0, 1)[1] or ''
    state.oldest[section] = found
    local at = #section + (string.find(section, '\29', 1, true) and 18 or 2) -- after the place
    local ticket = string.sub(found, at, at + 15)
    if found ~= '' and (not oldest or ticket < oldest_ticket) then
      oldest, oldest_ticket, listed = string.sub(found, at + 16), ticket, found
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
  local entry = parts_of(lane) and load_lane(lane)
  local ticket = entry and entry.ticket
  return ticket and listed == ready_member(lane, ticket, entry.place) and first_of(lane) ~= nil
end

-- Drop a member of KEYS ready whose lane is not ready.
local function drop_listed(lane, listed)
  redis.call('ZREM', READY, listed)
  state.oldest = {}
  if parts_of(lane) and not waits_apart(lane) and first_of(lane) then list_again(lane) end
end
