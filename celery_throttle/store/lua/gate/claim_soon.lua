-- The two commonest cases of claim.lua, which comes after it, decided before any shared function is made: nobody has the
-- lock, or another task waits with it. KEYS, ARGV, Returns: as there.
do
  local clock = redis.call('TIME')
  local now_ms, at = clock[1] * 1000 + math.floor(clock[2] / 1000), 5 + tonumber(ARGV[4])
  local task, spec, least_ms, awaited = ARGV[at], cjson.decode(ARGV[at + 1]), tonumber(ARGV[at + 2]), ARGV[at + 3]
  local identity, conflict = spec[1], spec[5]
  local till = redis.call('ZSCORE', KEYS[9], identity)
  local known = redis.call('HEXISTS', KEYS[4], task) == 1 -- published again; not so common
  if (not till or tonumber(till) <= now_ms) and not known then
    redis.call('ZREM', KEYS[3], '')
    for _, ended in ipairs(redis.call('ZRANGEBYSCORE', KEYS[9], '-inf', now_ms, 'LIMIT', 0, 4)) do
      if string.byte(ended) == 7 then
        redis.call('HDEL', KEYS[1], '\1' .. string.sub(ended, 2))
      else
        redis.call('HDEL', KEYS[8], ended)
      end
      redis.call('ZREM', KEYS[9], ended)
    end
    -- As next_stamp and new_lock do it.
    local now_us = clock[1] * 1000000 + clock[2]
    local claim = string.format('%.0f', math.max(tonumber(redis.call('HGET', KEYS[7], 'stamp') or 0) + 1, now_us))
    redis.call('HSET', KEYS[7], 'stamp', claim)
    redis.call('HSET', KEYS[8], identity, cjson.encode({ 'Q', task, claim, '', '0', now_ms, '', '0', 0, 0 }))
    redis.call('ZADD', KEYS[9], now_ms + least_ms, identity)
    return { 1, '', claim }
  end
  if till and conflict ~= 'replace' and conflict ~= 'keep_last' and awaited == '0' and not known then
    local lock = cjson.decode(redis.call('HGET', KEYS[8], identity))
    local state = lock[1]
    if lock[2] ~= task and (state == 'Q' or state == 'D' or state == 'F') then return { 0, lock[2], '0' } end
  end
end
