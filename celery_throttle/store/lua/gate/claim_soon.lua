-- The two commonest cases of claim.lua, which comes after it, decided before any shared function is made: nobody has the
-- lock, or another task waits with it. KEYS, ARGV, Returns: as there.
do
  local call, at = redis.call, 5 + ARGV[4]
  local clock, task, spec = call('TIME'), ARGV[at], ARGV[at + 1]
  local now_ms = clock[1] * 1000 + math.floor(clock[2] / 1000)
  local identity = string.match(spec, '^%["(%w+)"') -- to decode all of it takes longer than a command
  local till = identity and call('ZSCORE', KEYS[9], identity)
  local known = call('HEXISTS', KEYS[4], task) == 1 -- published again; not so common
  if identity and (not till or tonumber(till) <= now_ms) and not known then
    call('HDEL', KEYS[8], '') -- goes when Redis is out of memory, and so may what follows
    for _, ended in ipairs(call('ZRANGEBYSCORE', KEYS[9], '-inf', now_ms, 'LIMIT', 0, 4)) do
      if string.byte(ended) == 7 then
        call('HDEL', KEYS[1], '\1' .. string.sub(ended, 2)) -- see rules.lua
      else
        call('HDEL', KEYS[8], ended)
      end
      call('ZREM', KEYS[9], ended)
    end
    -- As next_stamp and new_lock do it.
    local now_us = clock[1] * 1000000 + clock[2]
    local claim = string.format('%.0f', math.max((call('HGET', KEYS[7], 'stamp') or 0) + 1, now_us))
    call('HSET', KEYS[7], 'stamp', claim)
    call('HSET', KEYS[8], identity, cjson.encode({ 'Q', task, claim, '', '0', now_ms, '', '0', 0, 0 }))
    call('ZADD', KEYS[9], now_ms + ARGV[at + 2], identity)
    return '1 ' .. claim .. ' '
  end
  if till and not known and ARGV[at + 3] == '0' then
    local conflict, lock = cjson.decode(spec)[5], cjson.decode(call('HGET', KEYS[8], identity))
    local waits = lock[1] == 'Q' or lock[1] == 'D' or lock[1] == 'F'
    if waits and lock[2] ~= task and conflict ~= 'replace' and conflict ~= 'keep_last' then return '0 0 ' .. lock[2] end
  end
end
