-- Places: how lanes are named, and places in them.
--
-- Parked tasks that are alike (the same queue, the same needs) stand in one lane: if the first cannot start,
-- none can. The name of a lane is the reason to wait, \0 and the queue. Reasons:
--   permits                      the text of the needs, unbound
--   nothing but a slot           ''
--   the outcome of another task  'follow:' identity ':' that task
--   an identity lock             'next:' identity
--   a pause before it begins again  'again:'
-- A member of KEYS lines is lane \0 place, the ticket if that is not the place, '.', task id.

local function lane_of(record)
  local lock, what = record.lock, record.needs
  if string.find(what, '\29', 1, true) then what = unbound(what) end
  if record.expired then
    what = ''
  elseif record.again then
    what = 'again:'
  elseif lock and lock.verdict == 'follow' then
    what = 'follow:' .. lock.identity .. ':' .. lock.first
  elseif lock and lock.verdict == 'next' then
    what = 'next:' .. lock.identity
  elseif lock and lock.verdict ~= 'run' then
    what = ''
  end
  return what .. '\0' .. record.queue
end

-- Return the reason to wait in a lane, and its queue.
local function parts_of(lane)
  return string.match(lane, '^([^%z]*)%z([^%z]*)$')
end

-- Return the section of KEYS ready for a lane, and whether it is one of lanes with open needs.
local function section_of(lane)
  local what, queue = parts_of(lane)
  if not string.find(what, '\29', 1, true) then return queue, false end
  return queue .. '\29\29' .. site_buckets(what), true
end

-- Return the member of KEYS ready for a lane, its section, and whether its needs are open. Such a lane stands
-- in its section by its place; place: nil if that is the ticket.
local function ready_member(lane, ticket, place)
  local section, has_sites = section_of(lane)
  local by = has_sites and (place or ticket) or ''
  return section .. '\0' .. by .. ticket .. lane, section, has_sites
end

-- Return the permits that the start of a task takes: none if the task is expired, lent out, pauses, or is
-- without the verdict run.
local function takes(record)
  if record.expired or record.lent or record.again then return '' end
  return (not record.lock or record.lock.verdict == 'run') and record.needs or ''
end

local function member_of(task, record)
  local places = ordered(record.ticket)
  if record.place and record.place ~= record.ticket then places = ordered(record.place) .. places end
  return lane_of(record) .. '\0' .. places .. '.' .. task
end

-- Parse a member of a lane, in the form of first_of; nil if the member names no task.
local function member_parts(lane, member)
  local places, task = string.match(string.sub(member, #lane + 2), '^(%d+)%.(.*)$')
  local place, ticket = string.sub(places or '', 1, 16), string.sub(places or '', 17)
  if #place ~= 16 or #ticket % 16 ~= 0 or #ticket > 16 then return nil end
  return { task = task, place = place, ticket = ticket ~= '' and ticket or place, member = member }
end

-- Return whether the tasks of a lane wait for something else than permits or a slot. Such a lane is not
-- listed.
local function waits_apart(lane)
  local kind = string.match(lane, '^(%l+):')
  return kind == 'follow' or kind == 'next' or kind == 'again'
end

-- Return a number as text that sorts like the number. The text has digits only, because Lua compares signs by
-- the locale of the server.
local NOUGHT = 1000000000000000

local function ordered(number)
  return string.format('%016.0f', number + NOUGHT)
end

-- Return the first task of a lane: { task, place, ticket, member }, or nil.
local function first_of(lane)
  if state.firsts[lane] then return state.firsts[lane] end
  local from, last = '[' .. lane .. '\0', '(' .. lane .. '\1'
  for _ = 1, STRAYS_MOST do
    local found = redis.call('ZRANGEBYLEX', LINES, from, last, 'LIMIT', 0, 1)[1]
    if not found then return nil end
    local first = member_parts(lane, found)
    if first then
      state.firsts[lane] = first
      return first
    end
    to_settle('stray', LINES, found, lane)
    from = '(' .. found
  end
end
