-- Unsettled: what follows from what was read or changed stands on a list, which settle.lua works off, or
-- ready.lua for buckets. So a function that reads writes nothing, and no rule calls another. A caller looks
-- whether anything is on the list before it calls settle: making that function would cost more.

-- Put on the list: the name of a rule in settle.lua, and what it is about.
local function to_settle(...)
  state.unsettled[#state.unsettled + 1] = { ... }
end

-- For mend.lua, which says what it has found.
local function note_wrong(key, field, why)
  if state.wrong then state.wrong[#state.wrong + 1] = { key, field, why } end
end

-- A field of any hash but records that cannot be read.
local function note_unreadable(hash, key, field, packed, why)
  note_wrong(key, field, why or 'not readable')
  to_settle('unreadable', hash, key, field, packed, why or 'not readable')
end

-- What a field of a hash has: a number from 0 on; else 0.
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

local function again_at(bucket, ms)
  redis.call('ZADD', DUE, 'LT', ms, 'bucket:' .. bucket)
end

-- The task that these waited for has lost its lock and has no outcome: one of them gets it, the others
-- wait for that one.
local function wake_followers(identity, first)
  to_settle('waiting', 'follow:' .. identity .. ':' .. first)
end

-- Who waited to run next has the lock, or somebody newer has.
local function wake_next(identity)
  to_settle('waiting', 'next:' .. identity)
end
