-- Sums: the totals over all keys of a limit. The sums change with the counts of the keys, so that a reader
-- need not add up pages of keys.

-- KEYS sums: 'used', 'waiting' or 'keys', \0 and a limit -> permits held on its keys, tasks that wait on its
-- keys, and the number of its keys with either; no field for 0.
local function add_sum(what, limit, by)
  local field = what .. '\0' .. limit
  local sum = redis.pcall('HINCRBY', SUMS, field, by)
  if type(sum) == 'table' then -- not a number
    note_unreadable(SUMS, 'sums', field, redis.call('HGET', SUMS, field))
  elseif sum <= 0 then
    redis.call('HDEL', SUMS, field)
  end
end

-- Change the count of a bucket in USED or WAITING (hash; other: the other one of the two), and the sums of
-- its limit. Returns the count, or nil if the stored count was not a number.
local function add_count(hash, other, what, bucket, by)
  local count = redis.pcall('HINCRBY', hash, bucket, by)
  if type(count) == 'table' then return nil end
  if count <= 0 then redis.call('HDEL', hash, bucket) end
  local limit = string.match(bucket, '^([^\31]*)\31')
  if not limit then return math.max(count, 0) end
  add_sum(what, limit, by - math.min(count, 0))
  local is_first_or_last = count <= 0 or count == by
  if is_first_or_last and redis.call('HEXISTS', other, bucket) == 0 then
    add_sum('keys', limit, count > 0 and 1 or -1)
  end
  return math.max(count, 0)
end

local function sum_of(what, limit)
  return counted_in(SUMS, 'sums', what .. '\0' .. limit)
end
