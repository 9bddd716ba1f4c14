-- Places: how lanes are named, and places in them.
--
-- Parked tasks that are alike (the same queue, the same needs) stand in one lane: none of them can start when
-- the first cannot. A lane is named by what they wait for, \0 and the queue; they wait for permits (the text
-- of their needs), for nothing but a slot (''), for the outcome of another task ('follow:' identity ':'
-- that task) or for an identity lock ('next:' identity). A member of KEYS lines is lane \0 place, the
-- ticket if it is another than the place, '.', task id.

local function lane_of(record)
  local lock, what = record.lock, record.needs
  if record.expired then
    what = ''
  elseif lock and lock.verdict == 'follow' then
    what = 'follow:' .. lock.identity .. ':' .. lock.first
  elseif lock and lock.verdict == 'next' then
    what = 'next:' .. lock.identity
  elseif lock and lock.verdict ~= 'run' then
    what = ''
  end
  return what .. '\0' .. record.queue
end

-- What is waited for in a lane, and the queue.
local function parts_of(lane)
  return string.match(lane, '^([^%z]*)%z([^%z]*)$')
end

-- The permits it takes to start a task: none for one that only waits to be told something, or is lent out.
local function takes(record)
  if record.expired or record.lent or record.lock and record.lock.verdict ~= 'run' then return '' end
  return record.needs
end

local function member_of(task, record)
  local places = ordered(record.ticket)
  if record.place and record.place ~= record.ticket then places = ordered(record.place) .. places end
  return lane_of(record) .. '\0' .. places .. '.' .. task
end

-- What a member of a lane says, as first_of returns it; nil if it names no task.
local function member_parts(lane, member)
  local places, task = string.match(string.sub(member, #lane + 2), '^(%d+)%.(.*)$')
  local place, ticket = string.sub(places or '', 1, 16), string.sub(places or '', 17)
  if #place ~= 16 or #ticket % 16 ~= 0 or #ticket > 16 then return nil end
  return { task = task, place = place, ticket = ticket ~= '' and ticket or place, member = member }
end

local function waits_for_lock(lane)
  local kind = string.match(lane, '^(%l+):')
  return kind == 'follow' or kind == 'next'
end

-- As text whose order is that of the numbers: digits alone, since how Lua compares a sign depends on the
-- server's locale.
local NOUGHT = 1000000000000000

local function ordered(number)
  return string.format('%016.0f', number + NOUGHT)
end
