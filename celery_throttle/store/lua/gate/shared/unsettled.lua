-- Unsettled: the consequences of a read or a change stand on a list, which settle.lua works off; ready.lua
-- does so for buckets. So a function that reads writes nothing, and no rule calls another. A caller checks
-- the list before it calls settle, because making that function would cost more.

-- Put an item on the list: the name of a rule in settle.lua, and its arguments.
local function to_settle(...)
  state.unsettled[#state.unsettled + 1] = { ... }
end

-- Note a finding for mend.lua, which returns all of them.
local function note_wrong(key, field, why)
  if state.wrong then state.wrong[#state.wrong + 1] = { key, field, why } end
end

-- Note an unreadable field of any hash but records.
local function note_unreadable(hash, key, field, packed, why)
  note_wrong(key, field, why or 'not readable')
  to_settle('unreadable', hash, key, field, packed, why or 'not readable')
end

-- Return a count from a field of a hash; 0 if there is none, or it is unreadable.
local function counted_in(hash, key, field)
  local kept = redis.call('HGET', hash, field)
  if not kept then return 0 end
  if is_digits(kept) then return tonumber(kept) end
  note_unreadable(hash, key, field, kept)
  return 0
end

local function touch(bucket)
  if bucket and not state.touched[bucket] then
    state.touched[bucket] = true
    state.touched[#state.touched + 1] = bucket
  end
end

-- Add work to KEYS due.
local function make_due(member, ms)
  local is_earlier = redis.call('ZADD', DUE, 'LT', 'CH', ms, member) == 1
  if is_earlier then state.due = math.min(state.due or ms, ms) end
end

local function again_at(bucket, ms)
  make_due('bucket:' .. bucket, ms)
end

-- A task has lost its lock without an outcome. One of the tasks that waited gets the lock, and the others
-- wait for that one.
local function wake_followers(identity, first)
  to_settle('waiting', 'follow:' .. identity .. ':' .. first)
end

-- The task that waited to run next has the lock, or a newer one has.
local function wake_next(identity)
  to_settle('waiting', 'next:' .. identity)
end
