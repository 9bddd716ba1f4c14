-- Aside: records that cannot be read. They cost their tasks alone: what goes on goes on without them.

-- A record that nobody can read must not stop the others: it goes where people can look at it, with its
-- message. Returns the record of another delivery if one waited for it.
local function set_aside(task, packed, why)
  why = why or pcall(cjson.decode, packed) and 'written by another release' or 'not readable'
  redis.call('HDEL', RECORDS, task)
  redis.call('HSET', ASIDE, task, cjson.encode({ v = VERSION, why = why, since = NOW, record = packed }))
  redis.call('ZADD', ENDS, NOW + 604800000, 'aside:' .. task)
  redis.call('ZREM', DUE, 'task:' .. task)
  if redis.call('ZREM', LEASES, task) == 1 then recount() end
  return settle_second(task, {}, 'nothing')
end

local function forget_aside(task)
  redis.call('HDEL', ASIDE, task)
  if redis.call('HEXISTS', RECORDS, task) == 0 then redis.call('HDEL', MESSAGES, task) end
end

-- What was held by one whose record is unreadable is known only by counting what all others hold.
local function recount()
  local used = {}
  for _, task in ipairs(redis.call('ZRANGE', LEASES, 0, 9999)) do
    local record = decoded(redis.call('HGET', RECORDS, task) or '')
    for _, need in ipairs(needs_of(record and takes(record) or '')) do
      used[need.bucket] = (used[need.bucket] or 0) + need.cost
    end
  end
  for _, bucket in ipairs(redis.call('HKEYS', USED)) do touch(bucket) end
  redis.call('DEL', USED)
  for bucket, held in pairs(used) do redis.call('HSET', USED, bucket, held) end
  state.rules = {}
end

-- The caller was given a parked task, and can make nothing of its record.
local function hear_unread(task, why)
  local packed = redis.call('HGET', RECORDS, task)
  local record = packed and decoded(packed)
  local own = record and string.find(record.nonce or '', state.holder .. ':', 1, true) == 1
  if packed and (own or not record) then set_aside(task, packed, why) end
end
