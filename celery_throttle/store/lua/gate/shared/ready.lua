-- Ready: after a change, each bucket that it touched is looked at once. The first lane that waits for the
-- bucket is ready if there is room. One call looks at no more than state.looks buckets and lanes. The rest is
-- due at once, for the next call.

-- Repair a lane that stands first at a bucket, against its own entry.
local function not_listed(lane, bucket, member)
  redis.call('ZREM', HEADS, member)
  state.heads[bucket] = nil
  if first_of(lane) then list_again(lane) end
  touch(bucket)
end

-- Make the first lane that waits for a bucket ready if there is room for its first task.
local function refresh(bucket)
  state.looks = state.looks - 1
  if is_full(rule_of(bucket)) then return end
  local passing, after = false, nil
  repeat
    local lane, rank, member = first_at(bucket, after)
    if not lane then return end
    local room, wait_ms = room_for(need_of(parts_of(lane), bucket))
    if wait_ms > 0 then again_at(bucket, NOW + wait_ms) end
    if not room then return end
    local entry, first = load_lane(lane), first_of(lane)
    if entry.at ~= bucket or entry.rank ~= rank or not first then return not_listed(lane, bucket, member) end
    if barred(bucket, first.task, tonumber(rank) - NOUGHT) then
      return again_at(bucket, rule_of(bucket).bar[UNTIL])
    end
    if not entry.ticket and is_for_caller(lane) then
      state.hot[lane] = first.ticket
      return
    end
    make_ready(lane, entry, first)
    save_lane(lane, entry)
    if not offer(lane, entry, bucket, member) then
      pass_over(lane, entry)
      passing = true
    elseif passing then
      -- A queue was passed over: all others have their chance at once, because many idle queues in turn would
      -- take long.
      after = member
    else
      return
    end
    state.looks = state.looks - 1
  until state.looks <= 0
  again_at(bucket, NOW)
end

local function refresh_touched()
  while #state.touched > 0 and state.looks > 0 do
    local bucket = table.remove(state.touched, 1)
    state.touched[bucket] = nil
    local is_site = string.find(bucket, '\29', 1, true)
    if not is_site then refresh(bucket) elseif not is_open(bucket) then note_freed(bucket) end
  end
end

-- Look at a page of the buckets of a limit that have waiting lanes. Returns the bucket to go on after, ''
-- after the last.
local function refresh_limit(limit, after)
  local from = after == '' and '[' .. limit .. '\0' or '(' .. after .. '\1'
  while state.looks > 0 do
    local found = redis.call('ZRANGEBYLEX', HEADS, from, '(' .. limit .. '\32', 'LIMIT', 0, 1)[1]
    if not found then return '' end
    after = string.match(found, '^[^%z]*')
    if is_open(after) then note_freed(after) else refresh(after) end
    from = '(' .. after .. '\1'
  end
  return after
end

-- The same, and the next page is due at once.
local function go_on_after(limit, after)
  if not any_parked() then return end
  local last = refresh_limit(limit, after)
  if last == '' and state.looks <= 0 then
    -- The page may not have begun, so it begins with the limit itself, which comes before its keys.
    again_at(limit, NOW)
    last = limit
  end
  if last ~= '' then make_due('limit:' .. last, NOW) end
end
