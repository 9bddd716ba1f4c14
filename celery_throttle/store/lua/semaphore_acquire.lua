-- Take a permit, or wait for one in line, or look what became of that; sent again it changes nothing but the leases.
-- KEYS, ARGV[1], ARGV[2] as in semaphore_common.lua
-- ARGV[3] lease (ms)
-- ARGV[4] for how long it stays in line without another look (ms); 0: it does not wait, or not any longer
-- ARGV[5] channel of its hints; a hint is '<lease (ms)> <ticket> <permit>', once the permit is its own
-- Returns {answer, ticket, since (us), next (ms)}; answer 1: it has the permit, 0: it waits, -1: neither. Next is how long
-- until a lease ends that its turn depends on, -1 if there is none. Times are the store's.
local LEASE_TILL, STAY_MS = NOW + ARGV[3], tonumber(ARGV[4])

local function held()
  local record = redis.call('HGET', HOLDERS, PERMIT)
  if not record then return nil end
  local ticket, since = string.match(record, '^(%d+) (%d+)$')
  -- Never shorter: a call that is sent again must not take away what a renewal gave.
  lease_till(PERMIT, math.max(LEASE_TILL, tonumber(redis.call('ZSCORE', LEASES, PERMIT))))
  return { 1, tonumber(ticket), tonumber(since), -1 }
end

-- What it has or where it stands, although it comes late, if nobody else has taken that.
if redis.call('HEXISTS', HOLDERS, PERMIT) == 1 then
  redis.call('HDEL', HOLDERS, '') -- a first write that a full server allows, so it allows the rest
  return held()
end
local ticket = redis.call('ZSCORE', LINE, PERMIT)
if ticket then
  redis.call('HDEL', HOLDERS, '')
  redis.call('ZADD', LOOKS, NOW + math.max(STAY_MS, 1), PERMIT)
end

reap()
hand_over()
local got = ticket and held()
if got then return got end

if not ticket then
  local last = redis.call('ZREVRANGE', LINE, 0, 0, 'WITHSCORES')[2]
  -- Later than all in line, also if the clock was set back.
  ticket = math.max(NOW_US, (last or 0) + 1)
  if not last and redis.call('ZCARD', LEASES) < limit then
    grant(PERMIT, ticket, LEASE_TILL)
    return { 1, ticket, NOW_US, -1 }
  end
end
if STAY_MS == 0 then
  leave_line(PERMIT)
  return { -1, 0, 0, -1 }
end

redis.call('ZADD', LINE, ticket, PERMIT)
redis.call('ZADD', LOOKS, NOW + STAY_MS, PERMIT)
redis.call('HSET', WAITERS, PERMIT, ARGV[3] .. ' ' .. ARGV[5])
keep(NOW + STAY_MS, LINE, LOOKS, WAITERS)
-- The first in line looks when a lease ends, so that not all do.
local ends = redis.call('ZRANGE', LINE, 0, 0)[1] == PERMIT and redis.call('ZRANGE', LEASES, 0, 0, 'WITHSCORES')[2]
return { 0, tonumber(ticket), 0, ends and math.max(ends - NOW, 0) or -1 }
