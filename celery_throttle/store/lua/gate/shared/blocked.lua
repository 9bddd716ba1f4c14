-- Blocked: why the first task of a lane cannot start, and the bucket where its lane waits for that.

-- Return whether a need that is not of a site keeps a task from starting, and after how long (ms) to look
-- again. Includes the bucket where its lane is listed, because another task may have come first there after
-- the lane became ready.
local function blocked_at(need, task, record)
  local bucket = need.bucket
  local room, wait_ms = room_for(need)
  local own = place_at(bucket, record)
  if not room or barred(bucket, task, own) then return true, wait_ms end
  local _, rank = first_at(bucket)
  -- Tasks that wait only for a rate do not come before a task whose start is booked.
  local has_start = need.booked and rule_of(bucket).permits == ANY_NUMBER
  return rank and rank < ordered(own) and not has_start, 0
end

-- Return the first bucket that keeps a task from starting, and after how long (ms) to look again; nil if
-- there is none.
local function blocked_by(needs, task, record)
  for _, need in ipairs(needs) do
    local is_blocked, wait_ms
    if site_of(need.bucket) then
      is_blocked, wait_ms = not room_for(need), 0
    else
      is_blocked, wait_ms = blocked_at(need, task, record)
    end
    if is_blocked then return need.bucket, wait_ms end
  end
  return nil
end

-- List the lane at the bucket that its first task waits for now.
local function move_lane(lane, entry, bucket, first, record)
  local moves = bucket ~= entry.at
  unlist(lane, entry)
  list_at(lane, entry, bucket, first)
  if not moves then return end
  record.moves = (record.moves or 0) + 1
  save_record(first.task, record)
  if record.moves >= MANY_MOVES then raise_bar(first.task, record) end
end
