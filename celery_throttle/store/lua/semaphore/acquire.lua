-- Take a permit, wait for one in line, or look at the outcome; a repeated call only changes leases.
-- KEYS, ARGV[1], ARGV[2] as in permits.lua
-- ARGV[3] lease (ms)
-- ARGV[4] how long the caller stays in line without another look (ms); 0: it does not wait (any longer)
-- ARGV[5] channel of its hints; a hint is '<lease (ms)> <ticket> <permit>', sent when the permit is granted
-- Returns {answer, ticket, since (us), next (ms)}. Answer 1: the caller has the permit, 0: it waits, -1:
-- neither. Next is the time until a lease ends that its turn depends on, -1 if there is none. Times are the
-- store's.
local lease_ms, stay_ms, channel = tonumber(ARGV[3]), tonumber(ARGV[4]), ARGV[5]
local HELD, WAITING = 1, 0
local NEITHER, NOTHING_ENDS = -1, -1

-- Let the lease of a held permit end this long from now. Never shorten the lease: a repeated call must not
-- undo a renewal.
local function holds(holder)
  local till_ms = tonumber(redis.call('ZSCORE', LEASES, permit))
  lease_till(permit, math.max(now_ms + lease_ms, till_ms))
  return { HELD, holder.ticket, holder.since_us, NOTHING_ENDS }
end

local function waits(ticket)
  redis.call('ZADD', LINE, ticket, permit)
  redis.call('ZADD', LOOKS, now_ms + stay_ms, permit)
  redis.call('HSET', WAITERS, permit, text(lease_ms) .. ' ' .. channel)
  keep(now_ms + stay_ms, LINE, LOOKS, WAITERS)
  -- Only the first in line looks when a lease ends, so that not all look at once.
  local is_first = redis.call('ZRANGE', LINE, 0, 0)[1] == permit
  local ends_ms = is_first and redis.call('ZRANGE', LEASES, 0, 0, 'WITHSCORES')[2]
  return { WAITING, tonumber(ticket), 0, ends_ms and math.max(ends_ms - now_ms, 0) or NOTHING_ENDS }
end

-- A late caller keeps its permit or its place, unless another call has removed it.
local holder, ticket = holder_of(permit), redis.call('ZSCORE', LINE, permit)
if holder or ticket then begin_to_write() end
if holder then return holds(holder) end
if ticket then redis.call('ZADD', LOOKS, now_ms + math.max(stay_ms, 1), permit) end

local limit = limit_now()
reap()
hand_over(limit)
if ticket then
  holder = holder_of(permit)
  if holder then return holds(holder) end
else
  local last = redis.call('ZREVRANGE', LINE, 0, 0, 'WITHSCORES')[2]
  -- Behind all others in line, even if the clock was set back.
  ticket = math.max(now_us, (last or 0) + 1)
  if not last and redis.call('ZCARD', LEASES) < limit then
    grant(permit, ticket, now_ms + lease_ms)
    return { HELD, ticket, now_us, NOTHING_ENDS }
  end
end
if stay_ms > 0 then return waits(ticket) end
leave_line(permit)
return { NEITHER, 0, 0, NOTHING_ENDS }
