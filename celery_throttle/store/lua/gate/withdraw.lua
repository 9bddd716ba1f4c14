-- Take parked tasks out of their line (revoked ones): the caller gets the messages and answers for them.
-- KEYS, ARGV[1..4] as in common.lua; then n, n task ids.
-- Returns { { task id, limit, queue, message }, ... } for those that were parked (or waited as a twin).
redis.call('ZREM', LEASES, '')
local withdrawn = {}

local function withdraw(task, field, record)
  local message = redis.call('HGET', MESSAGES, field)
  redis.call('HDEL', MESSAGES, field)
  redis.call('HDEL', RECORDS, field)
  if message then withdrawn[#withdrawn + 1] = { task, record[LIMIT], record[QUEUE], message } end
end

for _ = 1, tonumber(argument()) do
  local task = argument()
  local record, twin = load_record(task), load_record('\0' .. task)
  if record and record[STATE] == 'P' then
    leave_line(task, record)
    if record[MORE] then
      -- It may have kept those behind it from starting.
      joined[#joined + 1] = record[LIMIT]
      if record[MORE].n then drop_barrier(task, record) end
    end
    if record[LOCK] then
      lock_ends(task, record, '', 'again')
      give_up_lock(record[LOCK][IDENTITY], task)
    end
    withdraw(task, task, record)
  end
  if twin then withdraw(task, '\0' .. task, twin) end
end
for _, line in ipairs(joined) do promote(line) end
return withdrawn
