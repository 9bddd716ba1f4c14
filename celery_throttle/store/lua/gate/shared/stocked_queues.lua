-- Stocked queues: those of the caller in which a lane may be ready. A caller may have hundreds of queues, so
-- a call seeks from one queue with ready lanes to the next. The worker sends its queues in the order of
-- their bytes.

-- Return whether a text comes before another one. Lua's own comparison depends on the locale of the server.
local function is_before(text, other)
  for i = 1, math.min(#text, #other) do
    local one, two = string.byte(text, i), string.byte(other, i)
    if one ~= two then return one < two end
  end
  return #text < #other
end

-- Return the position of the first queue of the caller, from a position on, that does not come before this
-- one.
local function position_of(queue, from)
  local first, last = from, #state.queues + 1
  while first < last do
    local middle = math.floor((first + last) / 2)
    if is_before(state.queues[middle], queue) then first = middle + 1 else last = middle end
  end
  return first
end

local function add_stocked(queue)
  state.stocked[queue] = true
  state.stocked[#state.stocked + 1] = queue
end

-- A lane of this queue is ready now.
local function note_stocked(queue)
  if not state.stocked or not state.serves[queue] or state.stocked[queue] then return end
  add_stocked(queue)
  state.sections = nil
end

local function stocked_queues()
  if state.stocked then return state.stocked end
  state.stocked = {}
  local at = 1
  while state.queues[at] do
    local from = '[' .. state.queues[at] .. '\0'
    local found = redis.call('ZRANGEBYLEX', READY, from, '+', 'LIMIT', 0, 1)[1]
    if not found then break end
    local queue = string.match(found, '^[^%z\29]*')
    if queue ~= state.queues[at] then at = position_of(queue, at + 1) end
    if queue == state.queues[at] then
      add_stocked(queue)
      -- The first lane of the queue, if it is in no section of its own.
      local is_plain = string.byte(found, #queue + 1) == 0
      state.oldest[queue], at = is_plain and found or nil, at + 1
    end
  end
  return state.stocked
end
