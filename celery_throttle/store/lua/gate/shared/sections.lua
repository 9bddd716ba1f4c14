-- Sections of KEYS ready: lanes with open needs stand apart from the other lanes of their queue, by their
-- open buckets. Such a lane is always ready. A caller passes by sections for which its sites have no room.

-- How many sections of a queue a call looks at.
local SECTIONS_MOST = 32

-- Return whether the sites of the caller have a permit free in each of these open buckets.
local function has_site_for(buckets)
  for open in string.gmatch(buckets, '[^\1]+') do
    local bucket = state.sites and bound(open) or open
    if is_open(bucket) or state.refused and state.refused[bucket] then return false end
    local room, wait_ms = room_for({ bucket = bucket, cost = 1 })
    if wait_ms > 0 then
      state.waits = state.waits or {}
      state.waits[bucket] = NOW + wait_ms
    end
    if not room then return false end
  end
  return true
end

local function find_sections(queue)
  state.sections[#state.sections + 1] = queue
  local from, last = '[' .. queue .. '\29', '(' .. queue .. '\30'
  for _ = 1, SECTIONS_MOST do
    local found = redis.call('ZRANGEBYLEX', READY, from, last, 'LIMIT', 0, 1)[1]
    if not found then return end
    local section = string.match(found, '^[^%z]*')
    state.sections[#state.sections + 1] = section
    from = '(' .. section .. '\1'
  end
end

-- Return the sections whose lanes the caller may start, as far as its queues and sites decide that.
local function sections_here()
  if not state.sections then
    state.sections = {}
    for _, queue in ipairs(stocked_queues()) do find_sections(queue) end
  end
  local here = {}
  for _, section in ipairs(state.sections) do
    local buckets = string.match(section, '\29\29(.*)$')
    if not buckets or has_site_for(buckets) then here[#here + 1] = section end
  end
  return here
end

-- A bucket of sites may have room again.
local function note_freed(bucket)
  state.freed = state.freed or {}
  state.freed[bucket] = true
end

-- Hint that sites have room, if tasks wait for them that the caller has not started.
local function hint_sites()
  for bucket in pairs(state.freed) do
    local has_room = is_open(bucket) or room_for({ bucket = bucket, cost = 1 })
    if has_room and first_at(unbound(bucket)) then hint('site ' .. site_of(bucket)) end
  end
end
