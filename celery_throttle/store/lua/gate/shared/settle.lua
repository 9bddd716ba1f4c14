-- Settling: the consequences of a change, worked off until none is left. Each end of a run, and each thing
-- that time has ended, is settled separately. A row of a new task settles first, see mend_record. So each row
-- finds the consequences of those before it.

local function settle_one(rule, ...)
  if rule == 'waiting' then return each_waits_no_more(...) end
  if rule == 'concluded' then return followers_conclude(...) end
  if rule == 'all waiting' then return all_go_on(...) end
  if rule == 'make way' then return make_way(...) end
  if rule == 'unreadable' then return drop_unreadable(...) end
  if rule == 'unreadable task' then return set_aside(...) end
  if rule == 'lane' then return list_again(...) end
  if rule == 'stray' then return drop_stray(...) end
  return follow_clock(...)
end

local function settle()
  while #state.unsettled > 0 do settle_one(unpack(table.remove(state.unsettled, 1))) end
end

-- Return the record of the task of a row. An unreadable record is set aside first, because another delivery
-- of the task may go on in its place.
local function mend_record(task)
  local record = load_record(task)
  if record or #state.unsettled == 0 then return record end
  settle()
  return load_record(task)
end

-- Set aside a record that is unreadable, here or for a worker, with its message, so that the other tasks go
-- on. Operators can look at the record there. The readable parts of the record stay.
local function set_aside(task, packed, why, is_unreadable)
  keep_aside(task, why, packed)
  local record = record_of(task)
  if is_unreadable then
    if record.needs then return end -- a new record was written
    add_readable(record, packed)
    forget_end(task, record)
    if record.needs then return mark_changed(task) end
  end
  forget_delivery(task)
  redis.call('ZREM', DUE, 'task:' .. task)
  if redis.call('ZREM', LEASES, task) == 1 then recount() end
  settle_second(task, {}, 'nothing')
end

-- Drop an unreadable field of any other hash. Its tasks and limits go on without the value.
local function drop_unreadable(hash, key, field, packed, why)
  keep_aside(key .. '\0' .. field, why, packed, key)
  if redis.call('HGET', hash, field) == packed then -- else a new value was written
    redis.call('HDEL', hash, field)
    redis.call('ZREM', ENDS, key .. ':' .. field)
  end
  if hash == USED then recount() end
  if hash == WAITING or hash == SUMS then sum_again() end
  if hash == LIMITS then ask_for_declarations() end
  if hash == LOCKS then to_settle('all waiting', field) end
  if hash == LANES then to_settle('lane', field) end
end
