-- Begins: a task that has begun, and has no outcome, begins again after a pause, and not for ever.

-- How often a task may begin, if no worker has declared another number.
local BEGINS = 5

-- Return whether a delivery is one that runs: a worker reports the end of any other without its body.
local function is_to_run(record)
  return not record.expired and not (record.lock and record.lock.verdict ~= 'run')
end

-- A task that has begun, and has to begin again, waits for 1 s, 2 s, 4 s, ..., a lease at most.
local function begin_later(record)
  record.deliveries = (record.deliveries or 0) + 1
  if not is_to_run(record) then return end
  record.again = NOW + math.min(500 * 2 ^ math.min(record.deliveries, 20), LEASE_MS)
end

-- Return whether a run that ends now was the last that this task may have.
local function has_begun_enough(record)
  local most = meta_number('begins', WHOLE_END)
  return is_to_run(record) and (record.deliveries or 0) + 1 >= (most > 0 and most or BEGINS)
end

-- Set a task aside that has begun as often as it may, with its message.
local function keep_begun(task, record)
  record.deliveries = (record.deliveries or 0) + 1
  local why = string.format('begun %.0f times without an outcome', record.deliveries)
  keep_aside(task, why, cjson.encode(record))
  forget_delivery(task)
end

-- Remove tasks from the lanes of pauses whose records are unreadable.
local function drop_paused_strays()
  for _, member in ipairs(redis.call('ZRANGEBYLEX', LINES, '[again:\0', '(again:\1', 'LIMIT', 0, 500)) do
    local task = string.match(member, '^[^%z]*%z[^%z]*%z%d+%.(.*)$')
    if not task or not load_record(task) then out_of_line(member) end
  end
end
