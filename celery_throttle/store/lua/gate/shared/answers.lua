-- Answers: carrying out the rows of a worker's call one by one, and building the reply.

-- Name the buckets of these needs in the reply.
local function name_buckets(needs)
  for _, need in ipairs(needs_of(needs)) do state.named[need.bucket] = true end
end

local function apply_ends(passed, ended_runs)
  for _, row in ipairs(passed) do
    if not passed_on(row) then ended_late(row, mend_record(row.task)) end
    if next(state.unsettled) then settle() end
    name_buckets(row.to.needs)
  end
  for _, row in ipairs(ended_runs) do
    local record = ended(row.task, row.nonce, row.began, row.message, row.result)
    if record then name_buckets(record.needs) else ended_late(row, mend_record(row.task)) end
    if next(state.unsettled) then settle() end
  end
end

local function admit_rows(rows)
  local answers = {}
  for i, row in ipairs(rows) do
    name_buckets(row.needs)
    answers[i] = admit(row.task, row)
    if next(state.unsettled) then settle() end
    local runs = answers[i] == GRANTED or answers[i] > HAS_RUN
    -- A task that does not start leaves its slot to the oldest startable task.
    if not runs then state.slots = state.slots + 1 end
  end
  return answers
end

local function park_rows(rows)
  local answers = {}
  for i, row in ipairs(rows) do
    name_buckets(row.needs)
    row.message = argument()
    answers[i] = park(row.task, row)
    if next(state.unsettled) then settle() end
  end
  return answers
end

local function send_back_rows(rows)
  for _, row in ipairs(rows) do
    name_buckets(row.needs)
    row.message = argument()
    send_back(row.task, row, row.pause_ms, row.about)
    if next(state.unsettled) then settle() end
  end
end

-- Return whether the stored answer is to this call, and has as many rows.
local function is_answer_to(before, report)
  if before.number ~= state.call then return false end
  local asked, parked = before.asked or {}, before.parked or {}
  local fine = is_list(asked, 'numbers') and is_list(parked, 'numbers')
  fine = fine and is_list(before.granted or {}, 'texts') and is_list(before.withdrawn or {}, 'pairs')
  return fine and #asked == #(report.asked or {}) and #parked == #(report.parked or {})
end

-- Repeat the answer to a call that was carried out before.
local function answer_again(before, rows)
  redis.call('ZREM', LEASES, '')
  state.withdrawn = before.withdrawn or {}
  state.slots, state.grants = 0, keep_grants(before.granted or {}, state.holder .. ':' .. state.call .. '.')
  local asked = {}
  for i, row in ipairs(rows) do
    name_buckets(row.needs)
    asked[i] = answer_row_again(row, before.asked[i])
  end
  serve()
  return reply_with(asked, before.parked or {})
end

local function reply_with(asked, parked)
  local closed, open = {}, {}
  for bucket in pairs(state.named) do
    local free = room_for({ bucket = bucket, cost = 1 }) and not rule_of(bucket).newly_paced
    free = free and not (any_parked() and first_at(bucket))
    local list = free and open or closed
    list[#list + 1] = bucket
  end
  local more = 0
  if any_parked() and not state.all_served and oldest_ready() then more = 1 end
  return {
    state.call, asked, parked, grant_rows(state.grants), next_look_ms(), more, closed, open, state.withdrawn,
    state.mute and 0 or 1, state.reclaimed,
  }
end
