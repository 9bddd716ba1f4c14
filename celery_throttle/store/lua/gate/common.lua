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
--                         'stamp' -> last fencing token or claim given; 'sweep:' .. queue -> lines to look at (see wake.lua)
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
local index_of, unbook

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

local anybody -- whether somebody waits, found out when it matters

local function nobody_waits()
  if anybody == nil then anybody = redis.call('ZCARD', PARKED) > 0 end
  return not anybody
end

local function waits(limit)
  return not nobody_waits()
    and redis.call('ZRANGEBYLEX', PARKED, '[' .. limit .. '\0', '(' .. limit .. '\1', 'LIMIT', 0, 1)[1] ~= nil
end

local function enqueue(task, record)
  record[STATE], record[NONCE], anybody = 'P', '', true
  if record[MORE] and record[MORE].d then redis.call('ZADD', LEASES, record[MORE].d, task) end
  save_record(task, record)
  redis.call('ZADD', PARKED, 0, line_member(task, record))
end

-- starts: false for one that only comes back.
local function hold(task, record, nonce, starts)
  record[STATE], record[NONCE] = 'H', nonce
  redis.call('ZADD', LEASES, NOW + LEASE_MS, task)
  local waited = record[TICKET] ~= ''
  starts = starts and nonce
  if record[MORE] then record[MORE].d = nil end
  if record[MORE] and record[MORE].n then
    if counted(record) then
      for _, need in ipairs(record[MORE].n) do
        take(need[1], need[2], need[1] ~= record[MORE].r and starts, waited)
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

-- Rates do not count what was not started.
local function give_start_back(record, nonce)
  if not counted(record) then return end
  for _, need in ipairs(record[MORE] and record[MORE].n or { { record[LIMIT] } }) do
    permits_of(need[1])
    if rules[need[1]] and rules[need[1]].rates then unbook(need[1], nonce) end
  end
end

-- outcome: 'done' or 'failed' (ran to its end), 'retry' (will be delivered again), 'again' (ignored, rejected or child
-- lost: another delivery may follow), 'never' (the same, but it had not started: revoked, expired), 'requeue' (rejected: to
-- the tail of the line), 'return' (not started) and 'lost' (its worker is gone): to its own place in line, if the store has
-- the message.
local function release(task, nonce, outcome)
  local record = load_record(task)
  if not record or record[STATE] ~= 'H' or record[NONCE] ~= nonce then return nil end
  if outcome == 'never' or outcome == 'return' then give_start_back(record, nonce) end
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
