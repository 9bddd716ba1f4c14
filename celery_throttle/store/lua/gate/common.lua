-- Shared by every script (put in front of it when it is loaded): keys, store time, records, lines.
--
-- KEYS[1] limits    HASH  limit -> permits, as last declared, or more (see rules.lua); \1 .. limit: what was said of it since
-- KEYS[2] used      HASH  limit -> permits held now; no field when none is
-- KEYS[3] leases    ZSET  task id -> store time (ms) when its lease ends; holders only
-- KEYS[4] records   HASH  task id -> record (JSON array, see below); '\0' .. task id -> its twin
-- KEYS[5] parked    ZSET  all scores 0; member = limit \0 queue \0 ticket task-id, so a line is a range
-- KEYS[6] messages  HASH  task id -> the raw message, kept while the store is the only one that has it
-- KEYS[7] meta      HASH  'birth' -> when this data began (ms); 'settling' -> until when nothing is granted (ms);
--                         'ticket' -> last ticket given; 'looked', 'looked_locks' -> line that the last look ended with;
--                         'park:' .. worker -> number and time (ms) of its last park call;
--                         'offer:' .. limit \0 queue -> until (ms) and how long a passed-over queue stays so (ms);
--                         'stamp' -> last fencing token or claim given
-- KEYS[8] locks     HASH  identity -> identity lock (JSON array, see locks.lua); '\0' .. identity -> outcome for followers;
--                         '\1' .. task id -> how many duplicates that were published want its outcome; '\5' and '\6': rates
--                         and turns (see rules.lua)
-- KEYS[9] lock_ends ZSET  field of locks -> store time (ms) when it ends
-- KEYS[10] wake     channel of the hints; the payload is the queue whose workers can start something
-- ARGV[1] lease_ms, ARGV[2] nonce prefix for what is granted here, ARGV[3] slots the caller has for parked
-- tasks, ARGV[4] number of queues the caller consumes, then these queues; each script goes on from there.
local LIMITS, USED, LEASES, RECORDS = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local PARKED, MESSAGES, META, WAKE = KEYS[5], KEYS[6], KEYS[7], KEYS[10]

-- A record: state 'H' (holds a permit), 'P' (parked) or 'T' (twin: waits for another delivery of its task id); its limit
-- may be '' (none), and is the one in whose line it is if there are several; the last fields are there only for a task with
-- an identity lock (see locks.lua; false if it has none) and for one that needs more than a permit (see rules.lua).
local STATE, NONCE, LIMIT, ATTEMPT, TICKET, QUEUE, DELIVERIES, LOCK, MORE = 1, 2, 3, 4, 5, 6, 7, 8, 9

local OFFER_MS, PASS_MS, PASS_MAX_MS = 50, 1000, 60000
local MAX_QUEUES, MAX_LINES, MAX_MOVES = 256, 256, 256
local NO_LIMIT, MAX_TRIES = 1000000000, 1000

local clock = redis.call('TIME')
local NOW = clock[1] * 1000 + math.floor(clock[2] / 1000)
local LEASE_MS, NONCES = tonumber(ARGV[1]), ARGV[2]
local slots = tonumber(ARGV[3])
local mine, cursor = {}, 5 + tonumber(ARGV[4])
for i = 5, cursor - 1 do mine[ARGV[i]] = true end

local grants, emptied, hinted, wait_ms, more = {}, {}, {}, 0, 0
local joined = {} -- limits whose line somebody joined on the way
local moves = 0 -- from one line to another

-- Identity locks: how they work is in locks.lua, which comes after this.
local IDENTITY, VERDICT = 1, 7
local LOCK_LINES = {}
local open_locks, lock_starts, lock_ends, lock_allows, promote_lock
-- Limits that have more than a number, and tasks that need more than one permit, are in rules.lua.
local rules = {}
local open_rules, ruled_permits, rule_free, room_for, take, give, blocked_by, move_to, turn_served, drop_barrier, expire_parked
local index_of

local function argument()
  cursor = cursor + 1
  return ARGV[cursor - 1]
end

local function decoded(packed)
  if packed == '' then return nil end
  open_locks()
  return cjson.decode(packed)
end

local function unpacked(more)
  if more == '' then return nil end
  open_rules()
  return cjson.decode(more)
end

local function load_record(field)
  local packed = redis.call('HGET', RECORDS, field)
  if not packed then return nil end
  local record = cjson.decode(packed)
  if record[LOCK] then open_locks() end
  if record[MORE] then open_rules() end
  return record
end

local function save_record(field, record)
  redis.call('HSET', RECORDS, field, cjson.encode(record))
end

local function next_ticket()
  return string.format('%016.0f', redis.call('HINCRBY', META, 'ticket', 1))
end

local function is_lock_line(line)
  local kind = string.byte(line)
  return kind == 2 or kind == 3
end

-- A task that waits for its identity lock, or only for a slot in which to be answered, is in another line.
local function line_of(record)
  local lock = record[LOCK]
  return lock and LOCK_LINES[lock[VERDICT]] and LOCK_LINES[lock[VERDICT]](lock[IDENTITY]) or record[LIMIT]
end

-- Whether it takes a permit of its limit to start it.
local function counted(record)
  return record[LIMIT] ~= '' and line_of(record) == record[LIMIT]
end

local function line_member(task, record)
  return line_of(record) .. '\0' .. record[QUEUE] .. '\0' .. record[TICKET] .. task
end

-- How long nothing is granted yet, because holders may still have to put themselves back: 0 but for the seconds after
-- the data was lost.
local function settling_ms()
  local till = redis.call('HGET', META, 'settling')
  if not till then return 0 end
  if NOW < tonumber(till) then return till - NOW end
  redis.call('HDEL', META, 'settling')
  return 0
end

local function permits_of(limit)
  if rules[limit] then return rules[limit].permits end
  local base, at = limit, string.find(limit, '\31', 1, true)
  if at then base = string.sub(limit, 1, at - 1) end
  local said = redis.call('HMGET', LIMITS, base, '\1' .. base, '\1' .. limit)
  local permits = tonumber(said[1] or 0)
  if permits and not said[2] and not said[3] then return permits end
  open_rules()
  return ruled_permits(limit, base, said)
end

-- What a worker declares for a limit; that of a key is what its name has.
local function declare_limit(limit, said)
  local at = string.find(limit, '\31', 1, true)
  if said ~= '' then redis.call('HSETNX', LIMITS, at and string.sub(limit, 1, at - 1) or limit, said) end
end

local function unused(limit)
  return permits_of(limit) - tonumber(redis.call('HGET', USED, limit) or 0)
end

-- How many permits are free, and if none is, after how long (ms) some may be without anybody giving one back (0: never).
local function free_permits(limit)
  if limit == '' then return NO_LIMIT, 0 end
  local free, rule = unused(limit), rules[limit]
  if not rule then return free, 0 end
  return rule_free(limit, rule, free)
end

-- Whether an older task has to start before this one may; '' is the ticket of one that has just come.
local function barred(limit, task, ticket)
  local barrier = rules[limit] and rules[limit].barrier
  return barrier and barrier[3] ~= task and (ticket == '' or ticket > barrier[1])
end

-- Ask again after so long, at the latest.
local function soon(ms)
  if ms > 0 and (wait_ms == 0 or ms < wait_ms) then wait_ms = ms end
end

local function enqueue(task, record)
  record[STATE], record[NONCE] = 'P', ''
  if record[MORE] and record[MORE].d then redis.call('ZADD', LEASES, record[MORE].d, task) end
  save_record(task, record)
  redis.call('ZADD', PARKED, 0, line_member(task, record))
end

-- starts: false for one that only comes back.
local function hold(task, record, nonce, starts)
  record[STATE], record[NONCE] = 'H', nonce
  redis.call('ZADD', LEASES, NOW + LEASE_MS, task)
  local waited = record[TICKET] ~= ''
  if record[MORE] then record[MORE].d = nil end
  if record[MORE] and record[MORE].n then
    if counted(record) then
      for _, need in ipairs(record[MORE].n) do
        take(need[1], need[2], starts and need[1] ~= record[MORE].r, waited)
      end
    end
    record[MORE].r = nil
    drop_barrier(task, record)
  elseif counted(record) then
    if rules[record[LIMIT]] then
      take(record[LIMIT], 1, starts, waited)
    else
      redis.call('HINCRBY', USED, record[LIMIT], 1)
    end
  end
  if record[LOCK] then lock_starts(task, record) end
  save_record(task, record)
end

local function unhold(task, record)
  redis.call('ZREM', LEASES, task)
  if counted(record) then
    if record[MORE] and record[MORE].n then
      for _, need in ipairs(record[MORE].n) do give(need[1], need[2]) end
    elseif redis.call('HINCRBY', USED, record[LIMIT], -1) <= 0 then
      redis.call('HDEL', USED, record[LIMIT])
    end
  end
  redis.call('HDEL', RECORDS, task)
end

local function leave_line(task, record)
  redis.call('ZREM', PARKED, line_member(task, record))
  if record[MORE] and record[MORE].d then redis.call('ZREM', LEASES, task) end
  redis.call('HDEL', META, 'offer:' .. line_of(record) .. '\0' .. record[QUEUE])
end

-- Another delivery of this task id waited for this one to end: it goes on (true) unless this one made it needless.
local function settle_twin(task, record, finished)
  local twin = load_record('\0' .. task)
  if not twin then return false end
  redis.call('HDEL', RECORDS, '\0' .. task)
  if twin[LIMIT] ~= record[LIMIT] or twin[MORE] then joined[#joined + 1] = twin[LIMIT] end
  local goes_on = not (finished and twin[ATTEMPT] <= record[ATTEMPT])
  if goes_on then
    redis.call('HSET', MESSAGES, task, redis.call('HGET', MESSAGES, '\0' .. task) or '')
    enqueue(task, twin)
  end
  redis.call('HDEL', MESSAGES, '\0' .. task)
  return goes_on
end

-- outcome: 'done' or 'failed' (ran to its end), 'retry' (will be delivered again), 'again' (ignored, rejected, revoked or
-- child lost: another delivery may follow), 'requeue' (rejected: to the tail of the line), 'return' (never started) and
-- 'lost' (its worker is gone): to its own place in line, if the store has the message.
local function release(task, nonce, outcome)
  local record = load_record(task)
  if not record or record[STATE] ~= 'H' or record[NONCE] ~= nonce then return nil end
  unhold(task, record)
  local back = outcome == 'requeue' or outcome == 'return' or outcome == 'lost'
  if record[MORE] and record[MORE].n then
    for _, need in ipairs(record[MORE].n) do joined[#joined + 1] = need[1] end
  end
  if back and not (record[MORE] and record[MORE].o) and redis.call('HEXISTS', MESSAGES, task) == 1 then
    if outcome == 'requeue' then record[TICKET] = next_ticket() end
    if outcome ~= 'return' then record[DELIVERIES] = record[DELIVERIES] + 1 end
    if record[LOCK] then lock_ends(task, record, nonce, 'retry') end
    enqueue(task, record)
    if line_of(record) ~= record[LIMIT] then joined[#joined + 1] = line_of(record) end
  else
    redis.call('HDEL', MESSAGES, task)
    local goes_on = settle_twin(task, record, outcome == 'done' or outcome == 'failed')
    if record[LOCK] then lock_ends(task, record, nonce, goes_on and 'retry' or outcome) end
  end
  return record
end

-- A holder whose lease ended: its permit is free; a message that only the store has goes back to its place.
local function reclaim(task)
  local record = load_record(task)
  if record and record[STATE] == 'P' and record[MORE] and record[MORE].d then
    expire_parked(task, record)
    return nil
  end
  if not record or record[STATE] ~= 'H' then
    redis.call('ZREM', LEASES, task)
    return nil
  end
  return release(task, record[NONCE], 'lost')
end

local function reap(count)
  local expired = redis.call('ZRANGEBYSCORE', LEASES, '-inf', NOW, 'LIMIT', 0, count)
  local reclaimed = {}
  for _, task in ipairs(expired) do
    local record = reclaim(task)
    if record then reclaimed[#reclaimed + 1] = { task, record } end
  end
  return reclaimed
end

local function lines_from(first, last_one, most)
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
local function until_next_lease_ends()
  local first = redis.call('ZRANGE', LEASES, 0, 0, 'WITHSCORES')
  if first[2] then soon(math.max(first[2] - NOW, 0) + 5) end
end

-- The first of each queue's part of the line, oldest ticket first: { {ticket, task, queue}, ... }
local function line_heads(limit)
  local heads, from = {}, '[' .. limit .. '\0'
  if redis.call('ZCARD', PARKED) == 0 then return heads end
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

local function waits(limit)
  return redis.call('ZRANGEBYLEX', PARKED, '[' .. limit .. '\0', '(' .. limit .. '\1', 'LIMIT', 0, 1)[1] ~= nil
end

local function hint(queue)
  if hinted[queue] then return end
  hinted[queue] = true
  redis.call('PUBLISH', WAKE, queue)
end

-- Tell all who can start somebody from the lines of a limit, of whatever key, that there may be room.
local function hint_all(limit)
  for _, line in ipairs(lines_from('[' .. limit .. '\0', '(' .. limit .. '\32', MAX_LINES)) do
    for _, head in ipairs(line_heads(line)) do hint(head[3]) end
  end
end

-- Whether the queue of another worker still has the time to take what is its turn. It gets a short offer; a queue
-- that does not answer (no worker, or none with a slot) is passed over for a while, twice as long each time.
local function offered_ms(limit, queue)
  local field = 'offer:' .. limit .. '\0' .. queue
  local offer = redis.call('HGET', META, field)
  local till, pass = 0, PASS_MS / 2
  if offer then
    till, pass = string.match(offer, '^(%d+) (%d+)$')
    till, pass = tonumber(till), tonumber(pass)
  end
  if NOW < till then return till - NOW end
  if NOW < till + pass then return 0 end
  pass = math.min(pass * 2, PASS_MAX_MS)
  redis.call('HSET', META, field, string.format('%.0f %.0f', NOW + OFFER_MS, pass))
  hint(queue)
  return OFFER_MS
end

-- Whose turn it is on this limit: head, 0 (the caller may start it); nil, ms (another queue has that long to take
-- it); nil, 0 (nobody who can start waits).
local function next_parked(limit)
  local wait = 0
  for _, head in ipairs(line_heads(limit)) do
    if mine[head[3]] then
      if wait > 0 then return nil, wait end
      return head, 0
    end
    wait = math.max(wait, offered_ms(limit, head[3]))
  end
  return nil, wait
end

local function grant_of(task, record)
  return { task, record[NONCE], record[LIMIT], record[ATTEMPT], record[TICKET], record[QUEUE], record[DELIVERIES],
    redis.call('HGET', MESSAGES, task) or '', record[LOCK] and cjson.encode(record[LOCK]) or '',
    record[MORE] and cjson.encode(record[MORE]) or '' }
end

-- What keeps the first in this line: nil if it can start, its own limit if it has to wait there (and all behind it), or
-- another one, in whose line it is then. Forward: how many went from this line to one that comes later in their list.
local function kept_by(limit, head, record, free, forward)
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

local function load_head(limit, head)
  return load_record(head[2]) or { 'P', '', limit, 0, head[1], head[3], 0 }
end

-- Start the first in line; false if it has to wait for its identity lock after all.
local function resume(head, record)
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
local function promote(limit)
  if is_lock_line(limit) then
    open_locks()
    return promote_lock(limit)
  end
  local free, due = free_permits(limit)
  local settling = free > 0 and settling_ms() or 0
  if settling > 0 then
    wait_ms = settling
    return
  end
  local most, forward = MAX_TRIES, { moves = 0 }
  while free > 0 and most > 0 do
    most = most - 1
    local head, left = next_parked(limit)
    if not head then
      if left == 0 and limit ~= '' then emptied[#emptied + 1] = limit end
      soon(left)
      return
    end
    local record = load_head(limit, head)
    local blocker = kept_by(limit, head, record, free, forward)
    if blocker == limit then return end
    if not blocker then
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
-- of identity locks, whose names begin with \2 and \3, are counted apart: there may be many.
local function lines_between(first, last_one, field)
  local last = redis.call('HGET', META, field)
  local limits = lines_from(last and '(' .. last .. '\1' or first, last_one, MAX_LINES)
  if #limits == MAX_LINES then
    redis.call('HSET', META, field, limits[#limits])
  elseif last then
    redis.call('HDEL', META, field)
  end
  return limits
end
