-- Awaited: outcomes that duplicates will ask for, which were published while the first of them was pending.

local function one_less_awaited(first)
  local awaited = counted_in(AWAITED, 'awaited', first)
  if awaited > 1 then
    redis.call('HSET', AWAITED, first, awaited - 1)
  elseif awaited == 1 then
    redis.call('HDEL', AWAITED, first)
    redis.call('ZREM', ENDS, 'awaited:' .. first)
  end
end

local function more_awaited(first, by, till)
  redis.call('HSET', AWAITED, first, string.format('%.0f', counted_in(AWAITED, 'awaited', first) + by))
  redis.call('ZADD', ENDS, 'GT', till, 'awaited:' .. first)
end

-- The duplicates that were published while it was pending will ask for its outcome.
local function keep_awaited(task, plan, lock)
  if lock.awaited == 0 then return end
  more_awaited(task, lock.awaited, NOW + plan.ttl_ms)
  lock.awaited = 0
end
