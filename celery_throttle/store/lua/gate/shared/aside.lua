-- Aside: records that cannot be read. They cost their tasks alone: what goes on goes on without them.

-- KEYS aside: an object of v (VERSION); why; since (ms); record: what was stored; of anything but the record
-- of a task also key: the name of its key, as in begin.lua.
local ASIDE_MS = 604800000

local function keep_aside(name, why, packed, key)
  local kept = { v = VERSION, why = why, since = NOW, record = packed, key = key }
  redis.call('HSET', ASIDE, name, cjson.encode(kept))
  redis.call('ZADD', ENDS, NOW + ASIDE_MS, 'aside:' .. name)
end

-- For mend.lua, which says what it has found.
local function note_wrong(key, field, why)
  if state.wrong then state.wrong[#state.wrong + 1] = { key, field, why } end
end

-- A record that nobody can read must not stop the others: it goes where people can look at it, with its
-- message. Returns the record of another delivery if one waited for it.
local function set_aside(task, packed, why)
  note_wrong('records', task, why)
  redis.call('HDEL', RECORDS, task)
  keep_aside(task, why, packed)
  redis.call('ZREM', DUE, 'task:' .. task)
  if redis.call('ZREM', LEASES, task) == 1 then recount() end
  return settle_second(task, {}, 'nothing')
end

-- A field of any other hash that cannot be read goes, and what it was about goes on without it.
local function drop_unreadable(hash, key, field, packed, why)
  note_wrong(key, field, why or 'not readable')
  if state.only_reads then return end
  redis.call('HDEL', hash, field)
  redis.call('ZREM', ENDS, key .. ':' .. field)
  keep_aside(key .. '\0' .. field, why or 'not readable', packed, key)
  if hash == WAITING or hash == SUMS then sum_again() end
end

-- What a field of a hash has: a number from 0 on; else 0.
local function counted_in(hash, key, field)
  local kept = redis.call('HGET', hash, field)
  if not kept then return 0 end
  if is_digits(kept) then return tonumber(kept) end
  drop_unreadable(hash, key, field, kept)
  return 0
end

local function forget_aside(task)
  redis.call('HDEL', ASIDE, task)
  if redis.call('HEXISTS', RECORDS, task) == 0 then redis.call('HDEL', MESSAGES, task) end
end

-- The caller was given a parked task, and can make nothing of its record.
local function hear_unread(task, why)
  local packed = redis.call('HGET', RECORDS, task)
  local record = packed and record_in(packed)
  local own = record and string.find(record.nonce or '', state.holder .. ':', 1, true) == 1
  if packed and (own or not record) then set_aside(task, packed, why) end
end
