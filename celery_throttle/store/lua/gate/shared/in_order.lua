-- In order: the parked tasks of several lanes as one line. Each lane is read only as far as needed.
--
-- Members whose scores are not all 0 are in no order, so reading on after the last one could go round.
-- MOST_READS ends that.
local MOST_READS = 256

-- Read on to the next task of a lane. reader:
--   lane
--   from    where to read on
--   found   the members that were read last
--   at      the position in found
--   reads   how often the lane was read
--   placed  place and id of the task, as text; nil after the last
local function read_on(reader, most)
  reader.placed = nil
  repeat
    reader.at = reader.at + 1
    if reader.at > #reader.found then
      local last = '(' .. reader.lane .. '\1'
      reader.found, reader.at = redis.call('ZRANGEBYLEX', LINES, reader.from, last, 'LIMIT', 0, most), 1
      reader.reads = reader.reads + 1
      if #reader.found == 0 or reader.reads > MOST_READS then return end
      reader.from = '(' .. reader.found[#reader.found]
    end
    local member = string.sub(reader.found[reader.at], #reader.lane + 2)
    local place, task = string.match(member, '^(%d+)%.(.*)$')
    -- Skip a member that names no task.
    if place and #place >= 16 then reader.placed = string.sub(place, 1, 16) .. task end
  until reader.placed
end

-- Return the first tasks of these lanes together, or those after a given one ('': all): place and id of each,
-- as text.
local function first_in(lanes, most, after)
  local readers, found, chunk = {}, {}, math.ceil(most / math.max(#lanes, 1)) + 1
  for _, each in ipairs(lanes) do
    local from = '[' .. each.lane .. '\0' .. string.sub(after, 1, 16)
    local reader = { lane = each.lane, from = from, found = {}, at = 0, reads = 0 }
    repeat read_on(reader, chunk) until not reader.placed or reader.placed > after
    readers[#readers + 1] = reader
  end
  while #found < most do
    local first = nil
    for _, reader in ipairs(readers) do
      if reader.placed and (not first or reader.placed < first.placed) then first = reader end
    end
    if not first then break end
    found[#found + 1] = first.placed
    read_on(first, chunk)
  end
  return found
end
