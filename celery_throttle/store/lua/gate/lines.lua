-- The lines: who is first in each, whose turn it is, who starts. Shared by every script, after common.lua.
-- Most calls meet no line at all; these functions are made when somebody waits.
local lines_from, until_next_lease_ends, line_heads, hint, hint_all, turn_of, grant_of, kept_by, load_head
local resume, lines_between, promote_line

local opened_lines = false
local function open_lines()
  if opened_lines then return end
  opened_lines = true

  function lines_from(first, last_one, most)
    local limits, from = {}, first
    while #limits < most do
      local found = redis.call('ZRANGEBYLEX', PARKED, from, last_one, 'LIMIT', 0, 1)
      if not found[1] then break end
      local limit = string.sub(found[1], 1, string.find(found[1], '\0', 1, true) - 1)
      limits[#limits + 1] = limit
      from = '(' .. limit .. '\1'
    end
    return limits
  end

  -- Somebody waits: if the holder that is next to lose its lease is gone, its permit must not idle until the next look.
  function until_next_lease_ends()
    local first = redis.call('ZRANGE', LEASES, 0, 0, 'WITHSCORES')
    if first[2] then soon(math.max(first[2] - NOW, 0) + 5) end
  end

  -- The first of each queue's part of the line, oldest ticket first: { {ticket, task, queue}, ... }
  function line_heads(limit)
    local heads, from = {}, '[' .. limit .. '\0'
    for _ = 1, MAX_QUEUES do
      local found = redis.call('ZRANGEBYLEX', PARKED, from, '(' .. limit .. '\1', 'LIMIT', 0, 1)
      if not found[1] then break end
      local rest = string.sub(found[1], #limit + 2)
      local stop = string.find(rest, '\0', 1, true)
      local queue = string.sub(rest, 1, stop - 1)
      heads[#heads + 1] = { string.sub(rest, stop + 1, stop + 16), string.sub(rest, stop + 17), queue }
      from = '(' .. limit .. '\0' .. queue .. '\1'
    end
    table.sort(heads, function(a, b) return a[1] < b[1] end)
    return heads
  end

  function hint(queue)
    if hinted[queue] then return end
    hinted[queue] = true
    redis.call('PUBLISH', WAKE, queue)
  end

  -- Tell all who can start somebody from the lines of a limit, of whatever key, that there may be room.
  function hint_all(limit)
    for _, line in ipairs(lines_from('[' .. limit .. '\0', '(' .. limit .. '\32', MAX_LINES)) do
      for _, head in ipairs(line_heads(line)) do hint(head[3]) end
    end
  end

  -- Whether nobody could start this one now, wherever: it takes more permits than are free, or an older one bars it.
  local function cannot_start(limit, head)
    local record = load_record(head[2])
    if not (record and record[MORE] and record[MORE].n) or is_lock_line(limit) then return false end
    if barred(limit, head[2], head[1]) then return true end
    local room, due = room_for(limit, record[MORE].n[index_of(limit, record[MORE].n)][2])
    soon(due)
    return not room
  end

  -- Whether the queue of another worker still has the time to take what is its turn. It gets a short offer; a queue
  -- that does not answer (no worker, or none with a slot) is passed over for a while, twice as long each time. Negative: it
  -- cannot take it.
  local function offered_ms(limit, head)
    local queue = head[3]
    local field = 'offer:' .. limit .. '\0' .. queue
    local offer = redis.call('HGET', META, field)
    local till, pass = 0, PASS_MS / 2
    if offer then
      till, pass = string.match(offer, '^(%d+) (%d+)$')
      till, pass = tonumber(till), tonumber(pass)
    end
    if NOW < till then return till - NOW end
    if NOW < till + pass then return 0 end
    if cannot_start(limit, head) then return -1 end
    pass = math.min(pass * 2, PASS_MAX_MS)
    redis.call('HSET', META, field, string.format('%.0f %.0f', NOW + OFFER_MS, pass))
    hint(queue)
    return OFFER_MS
  end

  -- Whose turn it is on this limit: head, 0 (the caller may start it); nil, ms, head (another queue has that long to take
  -- it); nil, -1, head (one of another queue needs more permits than are free, and nobody may pass); nil, 0 (nobody who can
  -- start waits).
  function turn_of(limit)
    local wait, first = 0, nil
    for _, head in ipairs(line_heads(limit)) do
      if mine[head[3]] then
        if wait > 0 then return nil, wait, first end
        return head, 0
      end
      local left = offered_ms(limit, head)
      if left ~= 0 then first = first or head end
      if left < 0 then return nil, wait > 0 and wait or -1, first end
      wait = math.max(wait, left)
    end
    return nil, wait, first
  end

  function grant_of(task, record)
    return { task, record[NONCE], record[LIMIT], record[ATTEMPT], record[TICKET], record[QUEUE], record[DELIVERIES],
      redis.call('HGET', MESSAGES, task) or '', record[LOCK] and cjson.encode(record[LOCK]) or '',
      record[MORE] and cjson.encode(record[MORE]) or '' }
  end

  -- What keeps the first in this line: nil if it can start, its own limit if it has to wait there (and all behind it), or
  -- another one, in whose line it is then. Forward: how many went from this line to one that comes later in their list.
  function kept_by(limit, head, record, free, forward)
    if barred(limit, head[2], head[1]) then return limit end
    if not (record[MORE] and record[MORE].n) or not counted(record) then return nil end
    local blocker = blocked_by(limit, head[2], record)
    if not blocker or blocker == limit then return blocker end
    local needs = record[MORE].n
    if index_of(blocker, needs) > index_of(limit, needs) then
      -- No more than could start here: else a whole line would go there and come back.
      if forward.moves >= free then return limit end
      forward.moves = forward.moves + 1
    end
    if moves >= MAX_MOVES then
      more = 1
      return limit
    end
    move_to(blocker, head[2], record)
    return blocker
  end

  -- The record of the first in line; nil if it has waited for too long, and is in line only to be told so.
  function load_head(limit, head)
    local record = load_record(head[2]) or { 'P', '', limit, 0, head[1], head[3], 0 }
    if not (record[MORE] and record[MORE].d and record[MORE].d <= NOW) then return record end
    expire_parked(head[2], record)
    return nil
  end

  -- Start the first in line; false if it has to wait for its identity lock after all.
  function resume(head, record)
    local task = head[2]
    leave_line(task, record)
    if record[LOCK] and not lock_allows(task, record) then
      enqueue(task, record)
      return false
    end
    if record[MORE] and record[MORE].f and string.byte(record[TICKET]) ~= 45 then turn_served(record[MORE].f, record[TICKET]) end
    local nonce = NONCES .. '.' .. #grants
    hold(task, record, nonce, true)
    slots = slots - 1
    grants[#grants + 1] = grant_of(task, record)
    return true
  end

  -- Give free permits of this limit to those whose turn it is: to the caller while it has slots, then by a hint.
  function promote_line(limit)
    local free, due = free_permits(limit)
    local settling = free > 0 and settling_ms() or 0
    if settling > 0 then
      wait_ms = settling
      return
    end
    local most, forward = MAX_TRIES, { moves = 0 }
    while free > 0 and most > 0 do
      most = most - 1
      local head, left = turn_of(limit)
      if not head then
        if left == 0 and limit ~= '' then emptied[#emptied + 1] = limit end
        soon(left)
        return
      end
      local record = load_head(limit, head)
      local blocker = record and kept_by(limit, head, record, free, forward)
      if blocker == limit then return end
      if record and not blocker then
        if slots <= 0 then
          more = 1
          hint(head[3])
          return
        end
        if resume(head, record) then
          free = free - 1
          if rules[limit] or record[MORE] then free, due = free_permits(limit) end
        end
      end
    end
    if most == 0 then more = 1 end
    if due > 0 and waits(limit) then soon(due) end
  end

  -- The limits that have a line, MAX_LINES at the most; with more of them, each call goes on where the last one ended. Lines
  -- of identity locks, whose names begin with \2 and \3, are counted apart: there may be many. Also returns whether these
  -- are all.
  function lines_between(first, last_one, field)
    local last = redis.call('HGET', META, field)
    local limits = lines_from(last and '(' .. last .. '\1' or first, last_one, MAX_LINES)
    if #limits == MAX_LINES then
      redis.call('HSET', META, field, limits[#limits])
    elseif last then
      redis.call('HDEL', META, field)
    end
    return limits, not last and #limits < MAX_LINES
  end
end

-- Whose turn it is on this limit, as turn_of says.
local function next_parked(limit)
  if nobody_waits() then return nil, 0 end
  open_lines()
  return turn_of(limit)
end

-- Give free permits of this limit to those whose turn it is: to the caller while it has slots, then by a hint.
local function promote(limit)
  if is_lock_line(limit) then
    open_lines()
    open_locks()
    return promote_lock(limit)
  end
  if not nobody_waits() then
    open_lines()
    return promote_line(limit)
  end
  if limit == '' or free_permits(limit) <= 0 then return end
  local settling = settling_ms()
  if settling > 0 then
    wait_ms = settling
  else
    emptied[#emptied + 1] = limit
  end
end
