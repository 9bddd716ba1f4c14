-- Identity locks: keeping, passing on and freeing them. At most one task of each identity is pending or runs.
--
-- A lock is a JSON object:
--   v           VERSION
--   state       queued (its task is published or parked), running, done or failed (remembered), started (free
--               for others since)
--   task        the task that has the lock
--   claim       grows with every claim, text
--   nonce       of the delivery that runs
--   fence       its fencing token, text
--   since       (ms)
--   floor       until when the lock lasts at least (ms)
--   awaited     how many published duplicates will ask for the outcome
--   next        the task that runs next
--   next_claim  its claim
--   next_till   until when the lock lasts at least for that task (ms), see shared/next_tasks.lua
--   coming      the task (next, if there is one) has not come to a worker yet, see replace_waiting.lua
--   last        no delivery will follow the one that runs
--   lost        the task has succeeded, and its result could not be stored
--
-- A lock outlives the lease of its task, and the lease decides. So a call that reclaims the permit still
-- finds the lock to free.
local RUNNING_LEASES, LATEST_MS = 2, 253370764800000

-- Return the lock, even if its time has just ended.
local function kept_lock(identity)
  local lock = state.locks[identity]
  if lock ~= nil then return lock or nil end
  local packed, why = redis.call('HGET', LOCKS, identity), nil
  if packed then lock, why = readable(packed, 'lock') end
  if packed and not lock then note_unreadable(LOCKS, 'locks', identity, packed, why) end
  state.locks[identity] = lock or false
  if lock then forget_late_next(identity, lock) end
  return lock
end

local function lock_till(identity)
  return math.min(tonumber(redis.call('ZSCORE', ENDS, 'locks:' .. identity) or 0), LATEST_MS)
end

local function load_lock(identity)
  if lock_till(identity) <= NOW then return nil end
  return kept_lock(identity)
end

local function new_lock(task, claim)
  return {
    v = VERSION, state = 'queued', task = task, claim = claim, fence = '0', since = NOW, floor = 0,
    awaited = 0,
  }
end

local function write_lock(identity, lock)
  state.locks[identity] = lock
  redis.call('HSET', LOCKS, identity, cjson.encode(lock))
end

local function save_lock(identity, lock, till)
  write_lock(identity, lock)
  redis.call('ZADD', ENDS, math.max(till, lock.floor), 'locks:' .. identity)
end

local function drop_lock(identity)
  state.locks[identity] = false
  redis.call('HDEL', LOCKS, identity)
  redis.call('ZREM', ENDS, 'locks:' .. identity)
end

-- Pass the lock to the next task. Without a next task, delete the lock.
local function pass_lock_on(identity, lock, ttl_ms)
  if lock.next then
    local new = new_lock(lock.next, lock.next_claim)
    new.coming = lock.coming
    local till = math.max(NOW + ttl_ms, lock.next_till or 0)
    save_lock(identity, new, lock.coming and lock.next_till or till)
    wake_next(identity)
  else
    drop_lock(identity)
  end
  wake_followers(identity, lock.task)
end

local function lock_lapsed(identity)
  local lock = kept_lock(identity)
  state.locks[identity] = false
  redis.call('HDEL', LOCKS, identity)
  if not lock then return end
  wake_next(identity)
  wake_followers(identity, lock.task)
end
