-- Answers: the answers to the tasks that arrived, one by one, and the reply to a worker's call.

-- Name the buckets of these needs in the reply.
local function name_buckets(needs)
  for _, need in ipairs(needs_of(needs)) do state.named[need.bucket] = true end
end

local function answer_row(row)
  name_buckets(row.needs)
  if row.message then row.message = argument() end
  if row.message and string.find(row.needs, '\29', 1, true) then row.needs = unbound(row.needs) end
  if row.pause_ms then return send_back(row.task, row, row.pause_ms, row.about) end
  if row.message then return park(row.task, row) end
  local answer = admit(row.task, row)
  -- A task that does not start leaves its slot to the oldest startable task.
  if answer ~= GRANTED and answer <= ID_IN_USE then state.slots = state.slots + 1 end
  return answer
end

local function answer_rows(rows)
  local answers = {}
  for i, row in ipairs(rows) do answers[i] = answer_row(row) end
  return answers
end

-- Return whether the stored answer to a call can be read, and has so many answers to rows.
local function has_answers(before, rows)
  local fine = is_list(before.granted or {}, 'texts') and is_list(before.withdrawn or {}, 'pairs')
  local answers = before.answers or {}
  return fine and is_list(answers, 'numbers') and #answers == (rows or #answers)
end

-- Repeat the grants and the withdrawn tasks of a call that was carried out before.
local function repeat_grants(before)
  state.withdrawn = before.withdrawn or {}
  local number = string.format('%.0f', before.number)
  state.grants = keep_grants(before.granted or {}, state.holder .. ':' .. number .. '.')
end

-- Repeat the answer to a call that was carried out before.
local function answer_again(before, rows)
  redis.call('ZREM', LEASES, '')
  repeat_grants(before)
  state.slots = 0
  local answers = {}
  for i, row in ipairs(rows) do
    name_buckets(row.needs)
    answers[i] = answer_row_again(row, before.answers[i])
  end
  serve()
  return reply_with(answers)
end

-- Repeat what the worker has not read: a full store refused its call, and an earlier copy of that call was
-- carried out later.
local function repeat_unread(before)
  if not has_answers(before) then return end
  repeat_grants(before)
  state.slots = math.max(state.slots - #state.grants, 0)
end

local function reply_with(answers)
  local closed, open = {}, {}
  for bucket in pairs(state.named) do
    local free = room_for({ bucket = bucket, cost = 1 }) and not rule_of(bucket).newly_paced
    free = free and not (any_parked() and first_at(unbound(bucket)))
    local list = free and open or closed
    list[#list + 1] = bucket
  end
  local more = 0
  if any_parked() and settling() == 0 and oldest_ready() then more = 1 end
  return {
    state.call, answers, grant_rows(state.grants), next_look_ms(), more, closed, open, state.withdrawn,
    state.mute and 0 or 1, state.reclaimed,
  }
end
