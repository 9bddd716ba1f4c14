-- Readying: listing a lane in KEYS ready while nothing is known to keep its first task from starting.
--
-- While a lane with open needs is ready, it also stands in the lines of its open buckets in KEYS heads,
-- wherever else it waits. So a site with room finds the lanes before a newer task, in all queues.

-- Return the place of a task in the lines of its open buckets.
local function place_at_sites(needs, first)
  if first.place == first.ticket then return first.ticket end
  for _, need in ipairs(needs) do
    if site_of(need.bucket) and rule_of(need.bucket).fair then return first.place end
  end
  return first.ticket
end

-- Return the members of KEYS heads for a lane in the lines of its open buckets, to add or remove them: then
-- other lanes may be first.
local function changed_site_heads(lane, entry)
  local members = {}
  for open in string.gmatch(site_buckets(parts_of(lane)), '[^\1]+') do
    state.heads[open] = nil
    members[#members + 1] = open .. '\0' .. (entry.place or entry.ticket) .. '\0' .. lane
  end
  return members
end

local function unready(lane, entry)
  if not entry.ticket then return end
  local member, section, has_sites = ready_member(lane, entry.ticket, entry.place)
  redis.call('ZREM', READY, member)
  if has_sites then redis.call('ZREM', HEADS, unpack(changed_site_heads(lane, entry))) end
  entry.ticket, entry.place, state.oldest[section] = nil, nil, nil
end

local function make_ready(lane, entry, first)
  if entry.ticket then return end
  local what, queue = parts_of(lane)
  local place = string.find(what, '\29', 1, true) and place_at_sites(needs_of(what), first) or first.ticket
  if place ~= first.ticket then entry.place = place end
  local member, section, has_sites = ready_member(lane, first.ticket, entry.place)
  entry.ticket, state.oldest[section] = first.ticket, nil
  redis.call('ZADD', READY, 0, member)
  note_stocked(queue)
  if has_sites then
    state.sections = nil
    for _, head in ipairs(changed_site_heads(lane, entry)) do redis.call('ZADD', HEADS, 0, head) end
  end
  -- After an earlier hint a worker looks until nothing is ready or its slots are taken.
  if not state.was_ready[(entry.at or '') .. '\0' .. queue] then
    state.ready[#state.ready + 1] = { lane = lane, queue = queue }
  end
end
