-- What status, holders, parked and explain have in common, after what all scripts share. Writes nothing.
local LONGEST_HEAD, LONGEST_MESSAGE = 16384, 1048576

-- How a limit stands, as the gate sees it: { limit, declared, said of its name, said of its key, permits (-1: any number), 1 if
-- nothing may start, permits held, how many are parked, ms until the rates allow the next start }; all but numbers as in KEYS[1].
local function standing(limit)
  local base = string.match(limit, '^([^\31]*)')
  local said = redis.call('HMGET', LIMITS, base, '\1' .. base, '\1' .. limit)
  local permits = permits_of(limit)
  local rule = rules[limit]
  return {
    limit, said[1] or '', said[2] or '', limit ~= base and said[3] or '', permits < NO_LIMIT and permits or -1,
    rule and rule.closed and 1 or 0, tonumber(redis.call('HGET', USED, limit) or 0),
    redis.call('ZLEXCOUNT', PARKED, '[' .. limit .. '\0', '(' .. limit .. '\1'),
    rule and rule.rates and rate_wait_ms(limit, rule, 1) or 0,
  }
end

-- The head of a parked message (JSON, see worker/parcel.py), which has the task's name; '' if it is large.
local function head_of(task)
  if redis.call('HSTRLEN', MESSAGES, task) > LONGEST_MESSAGE then return '' end
  local length, head = string.match(redis.call('HGET', MESSAGES, task) or '', '^(%d+)\n(.*)')
  return length and tonumber(length) <= LONGEST_HEAD and string.sub(head, 1, tonumber(length)) or ''
end
