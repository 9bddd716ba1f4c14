-- Aside: values that cannot be read, and tasks that began too often. Each affects its own task alone; all
-- others go on.

-- KEYS aside: an object of
--   v       VERSION
--   why     the reason
--   since   (ms)
--   record  the stored value
--   key     the name of its key, as in begin.lua; absent for the record of a task
local ASIDE_MS = 604800000

local function keep_aside(name, why, packed, key)
  local kept = { v = VERSION, why = why, since = NOW, record = packed, key = key }
  redis.call('HSET', ASIDE, name, cjson.encode(kept))
  redis.call('ZADD', ENDS, NOW + ASIDE_MS, 'aside:' .. name)
end

local function forget_aside(task)
  redis.call('HDEL', ASIDE, task)
  if not load_second(task) then redis.call('HDEL', MESSAGES, '\0' .. task) end
  local is_there = state.changed[task] or redis.call('HEXISTS', RECORDS, task) == 1
  if not is_there then redis.call('HDEL', MESSAGES, task) end
end
