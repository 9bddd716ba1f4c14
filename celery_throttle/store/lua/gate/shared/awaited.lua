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

-- One duplicate less will ask for the outcome of a task.
local function outcome_told(plan, outcome)
  if plan.verdict ~= 'conclude' or plan.asked ~= plan.first then return end
  if outcome == 'waits' or outcome == 'lost' then return end
  will_not_ask(plan.identity, plan.first)
end

-- The duplicates that were published while it was pending will ask for its outcome.
local function keep_awaited(task, plan, lock)
  if lock.awaited == 0 then return end
  more_awaited(task, lock.awaited, NOW + plan.ttl_ms)
  lock.awaited = 0
end
