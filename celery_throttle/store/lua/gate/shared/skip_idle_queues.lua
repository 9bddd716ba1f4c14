-- Skip idle queues: a lane whose queue has no worker with a free slot does not hold up the lanes behind it.
local OFFER_MS, PASS_MS = 100, 60000

-- The queue did not take its turn in time. Other lanes may go first until a worker of the queue comes, or
-- some time has passed.
local function pass_over(lane, entry)
  redis.call('ZREM', HEADS, changed_head(lane, entry))
  redis.call('ZADD', DUE, NOW + PASS_MS, 'lane:' .. lane)
  entry.passed, entry.offered = true, nil
  save_lane(lane, entry)
end

-- The turn of a lane comes again.
local function take_back(lane, entry)
  if not entry.passed or not entry.at or not entry.rank then return end
  redis.call('ZREM', DUE, 'lane:' .. lane)
  entry.passed, entry.offered = nil, nil
  redis.call('ZADD', HEADS, 0, changed_head(lane, entry))
  save_lane(lane, entry)
  touch(entry.at)
end

-- Give the queue of a lane the time to take its turn, if another lane waits behind. Returns whether that time
-- is not over.
local function offer(lane, entry, bucket, member)
  if is_for_caller(lane) or not first_at(bucket, member) then return true end
  if not entry.offered then
    entry.offered = NOW + OFFER_MS
    save_lane(lane, entry)
  end
  if entry.offered <= NOW then return false end
  again_at(bucket, entry.offered)
  return true
end

-- Return whether the first task of a lane could start in a slot of the caller.
local function is_for_caller(lane)
  local what, queue = parts_of(lane)
  if state.slots <= 0 or not state.serves[queue] then return false end
  return not string.find(what, '\29', 1, true) or has_site_for(site_buckets(what))
end
