-- Move the store's time, together with the leases of the workers that live. Part of the test kit: the kit's
-- texts of the gate's scripts add the number in KEYS[6] to the time of the server.
-- KEYS leases, records, due, ends, workers, clock
-- ARGV[1]  microseconds
-- ARGV[2]  the workers that are lost: the last parts of their names, any number
local LEASES, RECORDS, DUE, ENDS, WORKERS, CLOCK = unpack(KEYS)
local MS = ARGV[1] / 1000

local lost = {}
for i = 2, #ARGV do lost[ARGV[i]] = true end

local function lives(worker)
  return not lost[string.match(worker, '[^/]*$')]
end

local function move(key, member)
  if redis.call('ZSCORE', key, member) then redis.call('ZINCRBY', key, MS, member) end
end

local function move_holder(task, record)
  if not lives(string.match(record.nonce, '^(.*):')) then return end
  move(LEASES, task)
  if record.lock then move(ENDS, 'locks:' .. record.lock.identity) end
end

-- A caller outside of tasks that waits for a permit prolongs its deadline.
local function move_waiting(task, record)
  if not record.outside or not record.deadline then return end
  record.deadline = record.deadline + MS
  redis.call('HSET', RECORDS, task, cjson.encode(record))
  move(DUE, 'task:' .. task)
end

redis.call('INCRBY', CLOCK, ARGV[1])
local records = redis.call('HGETALL', RECORDS)
for i = 1, #records, 2 do
  local task, record = records[i], cjson.decode(records[i + 1])
  if record.nonce then move_holder(task, record) else move_waiting(task, record) end
end

-- Without these a jump would look like an outage of the store, after which holders get time to renew.
local workers = redis.call('HGETALL', WORKERS)
for i = 1, #workers, 2 do
  local worker, known = workers[i], cjson.decode(workers[i + 1])
  if lives(worker) then
    for _, name in ipairs({ 'since', 'till', 'clock_off' }) do
      if known[name] then known[name] = known[name] + MS end
    end
    redis.call('HSET', WORKERS, worker, cjson.encode(known))
    move(ENDS, 'workers:' .. worker)
  end
end
for _, member in ipairs(redis.call('ZRANGE', ENDS, 0, -1)) do
  local about = string.match(member, '^meta:declared:(.*)$')
  if string.match(member, '^meta:broker:') or (about and lives(about)) then move(ENDS, member) end
end

return redis.status_reply('OK')
