-- Counting: permits held and tasks waiting, counted from the records and lines themselves.
--
-- The permits of a holder whose record is unreadable are found only by counting those of all other holders.
-- One count leaves out all unreadable holders at once. No call counts more than COUNTED_MOST.
local COUNTED_MOST = 10000

local function count_needs(counts, text)
  for _, need in ipairs(needs_of(text)) do counts[need.bucket] = (counts[need.bucket] or 0) + need.cost end
end

-- Returns nil if there are more holders than that.
local function holders_counted(most)
  if redis.call('ZCARD', LEASES) > most then return nil end
  local used = {}
  for first = 0, most, 100 do
    local tasks = redis.call('ZRANGE', LEASES, first, first + 99)
    if #tasks == 0 then break end
    for _, task in ipairs(tasks) do
      local record = load_record(task)
      if record and record.nonce then count_needs(used, takes(record)) end
    end
  end
  return used
end

local function waiting_counted()
  if redis.call('ZCARD', LINES) > COUNTED_MOST then return nil end
  local waiting = {}
  for _, member in ipairs(redis.call('ZRANGE', LINES, 0, -1)) do
    for _, need in ipairs(needs_of(string.match(member, '^(%d[^%z]*)%z') or '')) do
      waiting[need.bucket] = (waiting[need.bucket] or 0) + 1
    end
  end
  return waiting
end

-- Add up the counts of all keys in a hash. keys: the buckets that were counted already.
local function add_up(sums, keys, what, hash)
  local kept = redis.call('HGETALL', hash)
  for i = 1, #kept, 2 do
    local bucket, count = kept[i], kept[i + 1]
    local limit = string.match(bucket, '^([^\31]*)\31')
    if limit and is_digits(count) then
      local field, field_of_keys = what .. '\0' .. limit, 'keys\0' .. limit
      sums[field] = (sums[field] or 0) + tonumber(count)
      sums[field_of_keys] = (sums[field_of_keys] or 0) + (keys[bucket] and 0 or 1)
      keys[bucket] = true
    end
  end
end

-- Return the sums over all keys; nil if there are too many keys to count.
local function sums_counted()
  if redis.call('HLEN', USED) + redis.call('HLEN', WAITING) > COUNTED_MOST then return nil end
  local sums, keys = {}, {}
  add_up(sums, keys, 'used', USED)
  add_up(sums, keys, 'waiting', WAITING)
  return sums
end

local function keep_counts(hash, counts)
  for _, bucket in ipairs(redis.call('HKEYS', hash)) do touch(bucket) end
  redis.call('DEL', hash)
  for bucket, number in pairs(counts) do redis.call('HSET', hash, bucket, number) end
  state.rules = {}
  sum_again()
end

-- Build the sums again from the counts that are readable.
local function sum_again()
  local sums = sums_counted()
  if not sums then return end
  redis.call('DEL', SUMS)
  for field, sum in pairs(sums) do redis.call('HSET', SUMS, field, sum) end
end

local function recount()
  if state.recounted then return end
  state.recounted = true
  local used = holders_counted(COUNTED_MOST)
  if used then keep_counts(USED, used) end
end

-- Return how many permits of a bucket are held.
local function held_of(bucket)
  local kept = redis.call('HGET', USED, bucket)
  if not kept then return 0 end
  if is_digits(kept) then return tonumber(kept) end
  note_unreadable(USED, 'used', bucket, kept)
  state.counted = state.counted or holders_counted(COUNTED_MOST) or {}
  return state.counted[bucket] or 0
end

-- Compare the stored counts of all buckets with the true counts, and correct them.
local function check_counts(hash, name, counts)
  if not counts then return end
  local fine, known = true, {}
  local kept = redis.call('HGETALL', hash)
  for i = 1, #kept, 2 do
    local bucket, number = kept[i], kept[i + 1]
    known[bucket] = number
    if number ~= tostring(counts[bucket]) then
      note_wrong(name, bucket, number .. ', and counted are ' .. (counts[bucket] or 0))
      fine = false
    end
  end
  for bucket, number in pairs(counts) do
    if not known[bucket] then
      note_wrong(name, bucket, 'nothing, and counted are ' .. number)
      fine = false
    end
  end
  if fine or state.only_reads then return end
  if hash == SUMS then sum_again() else keep_counts(hash, counts) end
end
