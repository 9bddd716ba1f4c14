-- Settling: what follows from a change, worked off until nothing is left. Rows and what time ends are settled
-- one by one, so each row finds what followed from those before it.

local function settle_one(rule, ...)
  if rule == 'waiting' then return each_goes_on(...) end
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

-- The record of the task that a row is about. One that cannot be read is set aside first: another delivery of
-- the task may go on in its place.
local function mend_record(task)
  local record = load_record(task)
  if record or #state.unsettled == 0 then return record end
  settle()
  return load_record(task)
end

-- A record that cannot be read, or a delivery that a worker can make nothing of, must not stop the others: it
-- goes where people can look at it, with its message. What can be read of a record stays.
local function set_aside(task, packed, why, is_unreadable)
  keep_aside(task, why, packed)
  local record = record_of(task)
  if is_unreadable then
    if record.needs then return end -- it was written anew
    add_readable(record, packed)
    forget_end(task, record)
    if record.needs then return mark_changed(task) end
  end
  forget_delivery(task)
  redis.call('ZREM', DUE, 'task:' .. task)
  if redis.call('ZREM', LEASES, task) == 1 then recount() end
  settle_second(task, {}, 'nothing')
end

-- A field of any other hash that cannot be read goes, and what it was about goes on without it.
local function drop_unreadable(hash, key, field, packed, why)
  keep_aside(key .. '\0' .. field, why, packed, key)
  if redis.call('HGET', hash, field) == packed then -- else it was written anew
    redis.call('HDEL', hash, field)
    redis.call('ZREM', ENDS, key .. ':' .. field)
  end
  if hash == USED then recount() end
  if hash == WAITING or hash == SUMS then sum_again() end
  if hash == LIMITS then ask_for_declarations() end
  if hash == LOCKS then to_settle('all waiting', field) end
  if hash == LANES then to_settle('lane', field) end
end
