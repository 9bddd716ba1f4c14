-- What governs a limit beside its number (rates, an override, a pause), and tasks that need more than one permit.
-- Shared by every script, after common.lua, lines.lua and locks.lua.
--
-- A limit in KEYS[1]: its permits, or [ permits (0: any number), rates, how many may be parked (0: any number) ]; a rate is
-- [ count, period (us), burst ]. \1 .. limit: what was said of it at run time, an object of [ value, until (ms, 0: for
-- good), by, why, when (ms) ], one for each of 'override' (permits), 'pause', 'disable', 'hold' (the outside said that it
-- is asked too often) and 'barrier' (value: the ticket of a task that only older ones may overtake, by: its id).
-- The limit of one key is name \31 key; it has what its name has, and its own permits, rates, override and so on.
--
-- What a record says if its task is not content with one permit of one limit (MORE): an object
--   n  limits: { { limit, permits it takes }, ... }, those with a key first
--   f  its turn among others: { limit, key, step }, see fair_ticket
--   d  until when it may wait (ms); kept in KEYS[3] while it does
--   m  how often it went from one line to another
--   o  1: nobody's message, but a holder outside of tasks, who must ask again before d
--   r  the limit of which its start was booked before (reserve.lua), so that its rates do not count it again
-- Until when rates are booked is in KEYS[8] at \5 .. limit: seen (us), by (nonce of the last start) and, for each rate, by
-- count/period, 'us parts' now and before that start. Turns are there at \6 .. limit (start of the last
-- one served) and \6 .. limit \31 key (end of the last one given). KEYS[9] says when these end, and at \7 .. limit when all
-- ends that was said of a limit.
local LATE_US, BARRIER_MS, BOUNCES, TURNS_MS = 100000, 60000, 8, 3600000

local load_control, save_control, rate_wait_ms, fair_ticket, declare_needs, is_full, reserve_start

local rules_opened = false
function open_rules()
  if rules_opened then return end
  rules_opened = true

  local function open_ruled_limits()
    local NOW_US = clock[1] * 1000000 + clock[2]

    function load_control(limit)
      local packed = redis.call('HGET', LIMITS, '\1' .. limit)
      return packed and cjson.decode(packed) or {}
    end

    function save_control(limit, control)
      for name, said in pairs(control) do
        if said[2] ~= 0 and said[2] <= NOW then control[name] = nil end
      end
      local till, for_good = 0, false
      for _, said in pairs(control) do
        till, for_good = math.max(till, said[2]), for_good or said[2] == 0
      end
      if next(control) == nil then
        drop_lock('\7' .. limit)
      else
        redis.call('HSET', LIMITS, '\1' .. limit, cjson.encode(control))
        -- What ends by itself does not stay behind for keys that nobody uses any more.
        if for_good then
          redis.call('ZREM', LOCK_ENDS, '\7' .. limit)
        else
          redis.call('ZADD', LOCK_ENDS, till, '\7' .. limit)
        end
      end
      rules[limit] = nil
      permits_of(limit)
    end

    local function spoken(controls, name)
      for _, control in ipairs(controls) do
        local said = control[name]
        if said and (said[2] == 0 or said[2] > NOW) then return said end
      end
      return nil
    end

    -- Permits of a limit that more is known of than a number.
    function ruled_permits(limit, base, said)
      local declared = said[1] and (tonumber(said[1]) and { tonumber(said[1]) } or cjson.decode(said[1])) or { 0 }
      -- A number for one key comes before that for all.
      local controls = {}
      if said[3] then controls[1] = cjson.decode(said[3]) end
      if said[2] and base ~= limit then controls[#controls + 1] = cjson.decode(said[2]) end
      -- wait: how long (ms) until something that was said ends, and what waits may start (0: never).
      local rule = { rates = declared[2], most = declared[3] or 0, wait = 0 }
      for _, control in ipairs(controls) do
        for _, each in pairs(control) do
          local left = each[2] - NOW
          if left > 0 and (rule.wait == 0 or left < rule.wait) then rule.wait = left end
        end
      end
      local override = spoken(controls, 'override')
      rule.permits = override and override[1] or (declared[2] and declared[1] == 0) and NO_LIMIT or declared[1]
      rule.barrier = spoken(controls, 'barrier')
      if spoken(controls, 'disable') then rule.permits, rule.rates, rule.barrier = NO_LIMIT, nil, nil end
      rule.closed = (spoken(controls, 'pause') or spoken(controls, 'hold')) ~= nil
      if rule.rates and #rule.rates == 0 then rule.rates = nil end
      rules[limit] = rule
      return rule.permits
    end

    local function load_rates(limit, rule, cost)
      local kept = redis.call('HGET', LOCKS, '\5' .. limit)
      kept = kept and cjson.decode(kept) or {}
      local back, loaded = math.max(tonumber(kept.seen or 0) - NOW_US, 0), {}
      for i, said in ipairs(rule.rates) do
        local count, period, burst = said[1], said[2], math.max(said[3], cost)
        local name = string.format('%.0f/%.0f', count, period)
        local us, parts = string.match(kept[name] or '0 0', '^(%d+) (%d+)')
        loaded[i] = {
          name = name, in_us = count, us = math.max(us - back, 0), parts = tonumber(parts), spacing = period / count,
          cost_us = math.floor(cost * period / count), cost_parts = cost * period % count,
          burst_us = math.floor(burst * period / count), burst_parts = burst * period % count,
        }
      end
      return loaded
    end

    -- When the rates allow a start (us). Whoever waited for it may come a little late, by less than the time between two
    -- starts, and what follows is not put off by that; or every start would lose what it takes to wake a worker.
    local function start_of(loaded, waited)
      local start = 0
      for _, rate in ipairs(loaded) do
        local late = waited and math.min(LATE_US, math.max(math.floor(rate.spacing) - 1, 0)) or 0
        start = math.max(start, earliest(rate, NOW_US - late))
      end
      return start
    end

    function rate_wait_ms(limit, rule, cost)
      return math.max(math.ceil((start_of(load_rates(limit, rule, cost), true) - NOW_US) / 1000), 0)
    end

    local function book_at(limit, loaded, start, nonce)
      reap_locks(4)
      local kept, till = { seen = string.format('%.0f', NOW_US), by = nonce }, NOW_US
      for _, rate in ipairs(loaded) do
        local us, parts = booked(rate, start)
        kept[rate.name] = string.format('%.0f %.0f %.0f %.0f', us, parts, rate.us, rate.parts)
        till = math.max(till, us)
      end
      redis.call('HSET', LOCKS, '\5' .. limit, cjson.encode(kept))
      -- Somebody may come that late, as start_of says.
      redis.call('ZADD', LOCK_ENDS, math.ceil((till + LATE_US) / 1000) + 1, '\5' .. limit)
    end

    local function book(limit, rule, cost, waited, nonce)
      local loaded = load_rates(limit, rule, cost)
      book_at(limit, loaded, math.min(start_of(loaded, waited), NOW_US), nonce)
    end

    -- Its start was not made: it is free again, unless others have been booked since.
    function unbook(limit, nonce)
      local packed = redis.call('HGET', LOCKS, '\5' .. limit)
      local kept = packed and cjson.decode(packed)
      if not kept or kept.by ~= nonce then return end
      for name, said in pairs(kept) do
        local before = string.match(said, '^%d+ %d+ (%d+ %d+)$')
        if before then kept[name] = before end
      end
      kept.by = nil
      redis.call('HSET', LOCKS, '\5' .. limit, cjson.encode(kept))
    end

    function reserve_start(limit, rule, cost, longest)
      local loaded = load_rates(limit, rule, cost)
      local start = math.max(start_of(loaded, false), NOW_US)
      if start - NOW_US > longest then return { NOW_US - 1, NOW_US } end
      book_at(limit, loaded, start)
      return { start, NOW_US }
    end

    function rule_free(limit, rule, free)
      if rule.closed then return 0, rule.wait end
      if free > 0 and rule.rates then
        local wait = rate_wait_ms(limit, rule, 1)
        if wait > 0 then return 0, wait end
      end
      return free, free > 0 and 0 or rule.wait
    end

    -- Whether so many permits are free now, and if not, after how long (ms) to ask again (0: when somebody gives one back).
    function room_for(limit, cost, booked_before)
      local free, due = free_permits(limit)
      local rule = rules[limit]
      if booked_before and due > 0 and not rule.closed then
        local room = unused(limit) >= cost
        return room, room and 0 or rule.wait
      end
      -- One that takes more than there are runs alone.
      if free < math.min(cost, math.max(permits_of(limit), 1)) then
        return false, due > 0 and due or rule and rule.wait or 0
      end
      if cost > 1 and rule and rule.rates then due = rate_wait_ms(limit, rule, cost) end
      return due == 0, due
    end

    -- starts: the nonce it starts with; false for one that only comes back, which had its start before.
    function take(limit, cost, starts, waited)
      if limit == '' then return end
      redis.call('HINCRBY', USED, limit, cost)
      if not starts then return end
      permits_of(limit)
      local rule = rules[limit]
      if rule and rule.rates then book(limit, rule, cost, waited, starts) end
    end

    function give(limit, cost)
      if redis.call('HINCRBY', USED, limit, -cost) <= 0 then redis.call('HDEL', USED, limit) end
    end
  end

  local function open_needs()
    -- Declare what a worker sent with what its task takes, and keep only that.
    function declare_needs(needs)
      for _, need in ipairs(needs) do
        declare_limit(need[1], need[3] or '')
        need[3] = nil
      end
    end

    function index_of(limit, needs)
      for i, need in ipairs(needs) do
        if need[1] == limit then return i end
      end
      return 0
    end

    -- The limit that keeps a task from starting now, nil if none does. At: the limit in whose line it is the first ('' for
    -- one that has just come).
    function blocked_by(at, task, record)
      for _, need in ipairs(record[MORE].n) do
        local limit, cost = need[1], need[2]
        local booked_before = record[MORE].r == limit
        local room, due = room_for(limit, cost, booked_before)
        soon(due)
        if not room or barred(limit, task, record[TICKET]) then return limit end
        -- Those who wait for the rate alone are not before one that has its start.
        if limit ~= at and not (booked_before and permits_of(limit) == NO_LIMIT) then
          local head, left, other = next_parked(limit)
          soon(left)
          head = head or other
          if head and (record[TICKET] == '' or head[1] < record[TICKET]) then return limit end
        end
      end
      return nil
    end

    -- Keep newer tasks from everything that this one needs, until it has started: it went to and fro for long enough. One such
    -- task to a limit, so that none waits for another.
    local function raise_barrier(task, record)
      local controls = {}
      for i, need in ipairs(record[MORE].n) do
        local control = load_control(need[1])
        local before = control.barrier
        if before and before[3] ~= task and before[2] > NOW then return end
        control.barrier = { record[TICKET], NOW + BARRIER_MS, task, '', NOW }
        controls[i] = control
      end
      for i, need in ipairs(record[MORE].n) do save_control(need[1], controls[i]) end
    end

    function drop_barrier(task, record)
      if (record[MORE].m or 0) < BOUNCES then return end
      for _, need in ipairs(record[MORE].n) do
        local control = load_control(need[1])
        if control.barrier and control.barrier[3] == task then
          control.barrier = nil
          save_control(need[1], control)
          joined[#joined + 1] = need[1]
        end
      end
    end

    -- Whether as many wait for one of these limits as may.
    function is_full(limit, needs)
      for _, need in ipairs(needs or { { limit } }) do
        permits_of(need[1])
        local most = rules[need[1]] and rules[need[1]].most or 0
        local line = need[1]
        if most > 0 and redis.call('ZLEXCOUNT', PARKED, '[' .. line .. '\0', '(' .. line .. '\1') >= most then return true end
      end
      return false
    end

    function move_to(limit, task, record)
      leave_line(task, record)
      record[LIMIT] = limit
      record[MORE].m = (record[MORE].m or 0) + 1
      enqueue(task, record)
      joined[#joined + 1] = limit
      moves = moves + 1
      if record[MORE].m >= BOUNCES then raise_barrier(task, record) end
    end

    local function keep_turn(field, value)
      redis.call('HSET', LOCKS, field, string.format('%.0f', value))
      redis.call('ZADD', LOCK_ENDS, NOW + TURNS_MS, field)
    end

    -- A place in line that lets keys take turns: it begins where the last one of its key ended, but not before the turn that
    -- is served now (start-time fair queueing: Goyal, Vin, Cheng 1996). A key that weighs more has the smaller step.
    function fair_ticket(turn)
      reap_locks(4)
      local limit, step = '\6' .. turn[1], turn[3]
      local mine = limit .. '\31' .. turn[2]
      local served = tonumber(redis.call('HGET', LOCKS, limit))
        or tonumber(string.match(next_ticket(), '%d+'))
      keep_turn(limit, served)
      local start = math.max(served, tonumber(redis.call('HGET', LOCKS, mine) or 0))
      keep_turn(mine, start + step)
      return string.format('%016.0f', start)
    end

    function turn_served(turn, ticket)
      local limit = '\6' .. turn[1]
      local start = tonumber(string.match(ticket, '%d+'))
      if start > tonumber(redis.call('HGET', LOCKS, limit) or 0) then keep_turn(limit, start) end
    end

    -- It may not wait any longer: all that is left is to say so, or nothing for one who is not there any more.
    function expire_parked(task, record)
      leave_line(task, record)
      if record[MORE].n then drop_barrier(task, record) end
      joined[#joined + 1] = record[LIMIT]
      if record[MORE].o then
        redis.call('HDEL', RECORDS, task)
        redis.call('HDEL', MESSAGES, task)
        return
      end
      if record[LOCK] then
        lock_ends(task, record, '', 'again')
        give_up_lock(record[LOCK][IDENTITY], task)
        record[LOCK] = false
      end
      record[LIMIT], record[MORE] = '', { x = 1 }
      enqueue(task, record)
      joined[#joined + 1] = ''
    end
  end

  open_ruled_limits()
  open_needs()
end
