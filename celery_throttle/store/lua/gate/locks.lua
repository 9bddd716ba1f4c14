-- Identity locks: at most one pending or running task for each identity. Shared by every script, after common.lua and lines.lua.
--
-- A lock (in KEYS[8], ends as KEYS[9] says): state 'Q' (its task is queued or parked), 'R' (running), 'D' (done, remembered),
-- 'F' (failed, remembered) or 'S' (started, and free for others since); its task id, its claim (grows with every claim),
-- the nonce of the delivery that runs, its fencing token, since when (ms), the task that runs next and its claim, until
-- when it lasts at least (ms), and how many duplicates were published that somebody waits for.
local L_STATE, L_TASK, L_CLAIM, L_NONCE, L_FENCE = 1, 2, 3, 4, 5
local L_SINCE, L_NEXT, L_NEXT_CLAIM, L_FLOOR, L_AWAITED = 6, 7, 8, 9, 10
local LOCKS, LOCK_ENDS = KEYS[8], KEYS[9]

-- What a record says of its lock: identity, until ('finished', 'success', 'started', 'expires'), remember (ms), ttl while
-- queued (ms), what to do on conflict, claim (0: none), verdict, the task it is a duplicate of, fencing token, the
-- task it was a duplicate of when it was published, 1 if its lock was taken away while it ran. Verdicts:
--   run        has the lock          follow   waits for the outcome of whoever has it
--   next       runs after it         conclude the outcome is there
--   duplicate, skip, replaced, done  must not run: to be said by a worker
local UNTIL, REMEMBER_MS, TTL_MS, CONFLICT, CLAIM, FIRST, FENCE, AWAITED_FIRST, UNLOCKED = 2, 3, 4, 5, 6, 8, 9, 10, 11
local MAX_FOLLOWERS = 500
-- A lock outlives the lease of its task, which is what counts: so whoever reclaims the permit finds the lock to be freed.
local RUNNING = 2

local function drop_lock(identity)
  if string.byte(identity) == 7 then
    redis.call('HDEL', LIMITS, '\1' .. string.sub(identity, 2)) -- see rules.lua
  else
    redis.call('HDEL', LOCKS, identity)
  end
  redis.call('ZREM', LOCK_ENDS, identity)
end

-- Clear locks that ended.
local function reap_locks(count)
  local ended = redis.call('ZRANGEBYSCORE', LOCK_ENDS, '-inf', NOW, 'LIMIT', 0, count)
  for _, identity in ipairs(ended) do drop_lock(identity) end
end

local next_stamp, text, load_lock, live_lock, save_lock, new_lock, divert_replaced, replace_lock, pass_lock_on
local newest_waits, judge, judge_record, renew_lock, give_up_lock

-- Most calls have nothing to do with locks, and making these functions takes a while: they are made when a record, an
-- argument or a line shows that they are needed. Who gets a lock:
local opened = false
function open_locks()
  if opened then return end
  opened = true
  open_lines()

  local function open_claims()
    local function nowhere() return '' end
    LOCK_LINES = {
      follow = function(identity) return '\2' .. identity end,
      next = function(identity) return '\3' .. identity end,
      conclude = nowhere, duplicate = nowhere, skip = nowhere, replaced = nowhere, done = nowhere,
    }

    -- Fencing tokens and claims. The clock keeps them growing when the last one is lost with the data, the last one when the
    -- clock is set back.
    function next_stamp()
      local now_us = clock[1] * 1000000 + clock[2]
      local stamp = math.max(tonumber(redis.call('HGET', META, 'stamp') or 0) + 1, now_us)
      redis.call('HSET', META, 'stamp', string.format('%.0f', stamp))
      return stamp
    end

    function load_lock(identity)
      local till = redis.call('ZSCORE', LOCK_ENDS, identity)
      if not till or tonumber(till) <= NOW then return nil end
      local packed = redis.call('HGET', LOCKS, identity)
      return packed and cjson.decode(packed) or nil
    end

    -- The same, once its task has lost it if the task's worker is gone.
    function live_lock(identity)
      local lock = load_lock(identity)
      if not lock or lock[L_STATE] ~= 'R' then return lock end
      local till = redis.call('ZSCORE', LEASES, lock[L_TASK])
      if not till or tonumber(till) > NOW then return lock end
      reclaim(lock[L_TASK])
      return load_lock(identity)
    end

    -- Numbers beyond 10^14 lose digits in cjson, so stamps are kept as text.
    function save_lock(identity, lock, till)
      redis.call('HSET', LOCKS, identity, cjson.encode(lock))
      redis.call('ZADD', LOCK_ENDS, math.max(till, lock[L_FLOOR]), identity)
    end

    function text(stamp) return string.format('%.0f', stamp) end

    function new_lock(task, claim)
      return { 'Q', task, claim, '', '0', NOW, '', '0', 0, 0 }
    end

    -- Somebody newer has its place: it is told at once if it is parked, else when it arrives.
    function divert_replaced(task)
      local record = load_record(task)
      if not record or record[STATE] ~= 'P' or not record[LOCK] then return end
      leave_line(task, record)
      record[LOCK][VERDICT] = 'replaced'
      enqueue(task, record)
      joined[#joined + 1] = ''
    end

    -- The newest takes the place of whoever waits with the lock, and of whoever was to run next.
    function replace_lock(identity, old, new, till)
      divert_replaced(old[L_TASK])
      if old[L_NEXT] ~= '' and old[L_NEXT] ~= new[L_TASK] then divert_replaced(old[L_NEXT]) end
      save_lock(identity, new, till)
    end

    -- Free for another task: whoever is to run next gets it; else it is gone.
    function pass_lock_on(identity, lock, ttl_ms)
      if lock[L_NEXT] ~= '' then
        save_lock(identity, new_lock(lock[L_NEXT], lock[L_NEXT_CLAIM]), NOW + ttl_ms)
      else
        drop_lock(identity)
      end
      joined[#joined + 1] = '\2' .. identity
      joined[#joined + 1] = '\3' .. identity
    end

    local function is_newest(lock, task, claim)
      return lock[L_NEXT] == '' or lock[L_NEXT] == task or tonumber(claim) > tonumber(lock[L_NEXT_CLAIM])
    end

    function newest_waits(lock, task, spec)
      if not is_newest(lock, task, spec[CLAIM]) then return 'replaced' end
      if lock[L_NEXT] ~= '' and lock[L_NEXT] ~= task then divert_replaced(lock[L_NEXT]) end
      lock[L_NEXT], lock[L_NEXT_CLAIM] = task, spec[CLAIM]
      redis.call('HSET', LOCKS, spec[IDENTITY], cjson.encode(lock))
      return 'next'
    end

    -- Take the lock for this task, or say what becomes of it instead: its verdict, and whom it is a duplicate of.
    function judge(task, spec)
      local identity = spec[IDENTITY]
      -- It was a duplicate when it was published, and the first has ended since.
      if spec[FIRST] ~= '' and redis.call('HEXISTS', LOCKS, '\1' .. spec[FIRST]) == 1 then
        return 'conclude', spec[FIRST]
      end
      local lock = live_lock(identity)
      if not lock or lock[L_STATE] == 'S' and lock[L_TASK] ~= task then
        -- Whoever adds one clears some, so what has ended does not pile up where there is no beat.
        reap_locks(4)
        if spec[CLAIM] == '0' then spec[CLAIM] = text(next_stamp()) end
        lock = new_lock(task, spec[CLAIM])
        save_lock(identity, lock, NOW + spec[TTL_MS])
        return 'run', ''
      end
      local state, conflict = lock[L_STATE], spec[CONFLICT]
      if lock[L_TASK] == task then
        if state == 'D' then return 'done', task end
        if state == 'F' or state == 'S' then
          lock[L_STATE] = 'Q'
          save_lock(identity, lock, NOW + spec[TTL_MS])
        elseif state == 'Q' and spec[UNTIL] ~= 'expires' then
          save_lock(identity, lock, math.max(tonumber(redis.call('ZSCORE', LOCK_ENDS, identity)), NOW + spec[TTL_MS]))
        end
        return 'run', ''
      end
      if conflict == 'raise' then return 'duplicate', lock[L_TASK] end
      if conflict == 'skip' then return 'skip', lock[L_TASK] end
      if state == 'D' or state == 'F' then return 'conclude', lock[L_TASK] end
      if conflict ~= 'replace' and conflict ~= 'keep_last' then return 'follow', lock[L_TASK] end
      if spec[CLAIM] == '0' then spec[CLAIM] = text(next_stamp()) end
      -- Somebody newer took its place when it was published, and may run by now.
      if tonumber(spec[CLAIM]) < tonumber(lock[L_CLAIM]) then return 'replaced', lock[L_TASK] end
      if state == 'R' then
        if conflict == 'keep_last' then return newest_waits(lock, task, spec), lock[L_TASK] end
        return 'follow', lock[L_TASK]
      end
      replace_lock(identity, lock, new_lock(task, spec[CLAIM]), NOW + spec[TTL_MS])
      return 'run', ''
    end

    function judge_record(task, record)
      local spec = record[LOCK]
      spec[AWAITED_FIRST] = spec[AWAITED_FIRST] or spec[FIRST]
      spec[VERDICT], spec[FIRST] = judge(task, spec)
      spec[FENCE], spec[UNLOCKED] = '0', nil
      return spec[VERDICT] == 'run'
    end

    -- Before a parked task starts: its lock may have ended while it waited, and be another's now.
    function lock_allows(task, record)
      local verdict = record[LOCK][VERDICT]
      if verdict == 'run' then
        if judge_record(task, record) then return true end
        joined[#joined + 1] = line_of(record)
        return false
      end
      return true
    end
  end

  -- How long a lock lasts, and who comes next.
  local function open_ends()
    -- The task starts: its lock lasts as long as its lease.
    function lock_starts(task, record)
      local spec = record[LOCK]
      if spec[VERDICT] ~= 'run' then return end
      local identity = spec[IDENTITY]
      local lock = load_lock(identity) or new_lock(task, spec[CLAIM])
      if lock[L_TASK] ~= task then return end
      -- One that is put back has the token that its task knows.
      if not (lock[L_STATE] == 'R' and lock[L_NONCE] == record[NONCE] and spec[FENCE] ~= '0') then
        spec[FENCE] = text(next_stamp())
      end
      lock[L_NONCE], lock[L_FENCE], lock[L_SINCE] = record[NONCE], spec[FENCE], NOW
      if spec[UNTIL] == 'started' then
        lock[L_STATE] = 'S'
      else
        lock[L_STATE] = 'R'
      end
      if spec[UNTIL] == 'expires' then
        -- From the claim on: the one time that nothing else changes.
        local till = tonumber(redis.call('ZSCORE', LOCK_ENDS, identity) or 0)
        lock[L_FLOOR] = math.max(lock[L_FLOOR], till)
      else
        lock[L_FLOOR] = 0
      end
      save_lock(identity, lock, NOW + RUNNING * LEASE_MS)
    end

    local function one_less_awaited(field)
      local awaited = tonumber(redis.call('HGET', LOCKS, field) or 0)
      if awaited > 1 then
        redis.call('HSET', LOCKS, field, awaited - 1)
      elseif awaited == 1 then
        drop_lock(field)
      end
    end

    local function lasts(spec, lock, outcome)
      if spec[UNTIL] == 'expires' then return lock[L_FLOOR] end
      if outcome == 'done' then return NOW + spec[REMEMBER_MS] end
      return spec[UNTIL] == 'success' and NOW + spec[TTL_MS] or NOW
    end

    -- The task does not run any more; outcome as in common.lua.
    function lock_ends(task, record, nonce, outcome)
      local spec = record[LOCK]
      local stays = outcome == 'retry' or outcome == 'requeue' or outcome == 'return'
      if spec[VERDICT] == 'conclude' and spec[AWAITED_FIRST] == spec[FIRST] and not stays and outcome ~= 'lost' then
        one_less_awaited('\1' .. spec[FIRST])
      end
      if spec[VERDICT] ~= 'run' then return end
      local identity = spec[IDENTITY]
      local ended = outcome == 'done' or outcome == 'failed'
      if ended and waits('\2' .. identity) then
        local told = cjson.encode({ task, redis.call('HGET', META, 'ticket') or '0' })
        redis.call('HSET', LOCKS, '\0' .. identity, told)
        redis.call('ZADD', LOCK_ENDS, NOW + math.max(spec[TTL_MS], LEASE_MS), '\0' .. identity)
        joined[#joined + 1] = '\2' .. identity
      end
      -- Also one that has just ended, with the lease: the nonce says whether it is still this task's.
      local packed = redis.call('HGET', LOCKS, identity)
      local lock = packed and cjson.decode(packed)
      if not lock or lock[L_TASK] ~= task or lock[L_NONCE] ~= nonce then return end
      -- It had succeeded, and only its worker was lost before it could say so.
      if lock[L_STATE] == 'D' and not ended then return end
      lock[L_NONCE] = ''
      if ended and lock[L_AWAITED] > 0 then
        redis.call('HINCRBY', LOCKS, '\1' .. task, lock[L_AWAITED])
        lock[L_AWAITED] = 0
        redis.call('ZADD', LOCK_ENDS, NOW + spec[TTL_MS], '\1' .. task)
      end
      if ended and lock[L_NEXT] == '' and lasts(spec, lock, outcome) > NOW then
        lock[L_STATE] = outcome == 'done' and 'D' or 'F'
        save_lock(identity, lock, lasts(spec, lock, outcome))
      elseif stays then
        lock[L_STATE] = 'Q'
        local till = NOW + spec[TTL_MS]
        if spec[UNTIL] == 'expires' and lock[L_FLOOR] > NOW then till = lock[L_FLOOR] end
        save_lock(identity, lock, till)
      elseif lock[L_FLOOR] > NOW and (outcome == 'lost' or spec[UNTIL] == 'expires') then
        lock[L_STATE] = 'Q'
        save_lock(identity, lock, lock[L_FLOOR])
      else
        pass_lock_on(identity, lock, spec[TTL_MS])
      end
    end

    -- Keep the lock of a task that runs, or bring it back after the store lost it; false if another task has it.
    function renew_lock(task, record)
      local spec = record[LOCK]
      if spec[VERDICT] ~= 'run' or spec[UNTIL] == 'started' or spec[UNLOCKED] then return true end
      local identity = spec[IDENTITY]
      local lock = load_lock(identity)
      if lock and lock[L_TASK] == task and lock[L_STATE] == 'D' then return true end
      if lock and lock[L_STATE] ~= 'Q' and (lock[L_TASK] ~= task or lock[L_STATE] ~= 'R') then return false end
      if not lock or lock[L_TASK] ~= task then
        -- Whoever claimed it meanwhile has not begun.
        lock = new_lock(task, spec[CLAIM])
        lock[L_STATE], lock[L_FENCE] = 'R', spec[FENCE] or '0'
      end
      lock[L_NONCE] = record[NONCE]
      save_lock(identity, lock, NOW + RUNNING * LEASE_MS)
      return true
    end

    -- Give up the lock of a task that will never run (revoked, expired, not published).
    function give_up_lock(identity, task)
      local lock = load_lock(identity)
      if not lock then return 0 end
      if lock[L_NEXT] == task then
        lock[L_NEXT], lock[L_NEXT_CLAIM] = '', '0'
        redis.call('HSET', LOCKS, identity, cjson.encode(lock))
        return 1
      end
      if lock[L_TASK] ~= task or lock[L_STATE] ~= 'Q' then return 0 end
      pass_lock_on(identity, lock, LEASE_MS)
      return 1
    end

    -- What a task that waits for its lock can do now: 'run', 'conclude' and with whose outcome, or nil.
    local function next_step(task, record, identity)
      local told = redis.call('HGET', LOCKS, '\0' .. identity)
      local outcome = told and cjson.decode(told)
      if record[LOCK][VERDICT] == 'follow' and outcome and tonumber(record[TICKET]) <= tonumber(outcome[2]) then
        return 'conclude', outcome[1]
      end
      local lock = load_lock(identity)
      if record[LOCK][VERDICT] == 'follow' then
        local first = load_record(record[LOCK][FIRST])
        if first and first[STATE] == 'H' and first[LOCK] and first[LOCK][IDENTITY] == identity then return nil end
      end
      if not lock or lock[L_TASK] == task or lock[L_STATE] == 'S' then return 'run', '' end
      if lock[L_STATE] == 'D' or lock[L_STATE] == 'F' then return 'conclude', lock[L_TASK] end
      return nil
    end

    local function told_outcome(identity)
      return redis.call('HEXISTS', LOCKS, '\0' .. identity) == 1
    end

    local function nobody_can_go(line, identity)
      local oldest = line_heads(line)[1]
      local record = oldest and load_record(oldest[2])
      return record and record[LOCK][VERDICT] == 'follow' and not next_step(oldest[2], record, identity)
    end

    -- Those who wait for an identity lock: start them, or have them told the outcome.
    function promote_lock(line)
      local identity = string.sub(line, 2)
      local settling = settling_ms()
      if settling > 0 then
        wait_ms = settling
        return
      end
      -- Offers to other queues are for those who can start.
      if not told_outcome(identity) and nobody_can_go(line, identity) then return end
      for _ = 1, MAX_FOLLOWERS do
        local head, left = next_parked(line)
        if not head then
          if left > 0 and (wait_ms == 0 or left < wait_ms) then wait_ms = left end
          if left == 0 and string.byte(line) == 2 and not waits(line) then drop_lock('\0' .. identity) end
          return
        end
        local task = head[2]
        local record = load_record(task)
        local step, first = next_step(task, record, identity)
        local lock = load_lock(identity)
        -- One that is not the next one any more must not stand in the way of the one that is.
        if not step and record[LOCK][VERDICT] == 'next' and lock[L_NEXT] ~= task then step, first = 'run', '' end
        if not step then return end
        leave_line(task, record)
        record[LOCK][VERDICT], record[LOCK][FIRST] = step, first
        if step == 'run' then judge_record(task, record) end
        enqueue(task, record)
        promote(line_of(record))
        if slots <= 0 and more == 1 then return end
      end
      more = 1
    end
  end

  open_claims()
  open_ends()
end
