-- Say how many permits there are, who holds them, and how many wait; changes nothing.
-- KEYS, ARGV[1], ARGV[2] ('') as in semaphore_common.lua
-- ARGV[3] how many holders to list at most
-- Returns {limit, waiting, then for each holder: permit, lease left (ms), ticket, since (us, store time)}; the lease that
-- ends first comes first.
local LIVE = '(' .. text(NOW)
local answer = { limit, redis.call('ZCOUNT', LOOKS, LIVE, '+inf') }
local listed = redis.call('ZRANGEBYSCORE', LEASES, LIVE, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGV[3])
for i = 1, #listed, 2 do
  local ticket, since = string.match(redis.call('HGET', HOLDERS, listed[i]), '^(%d+) (%d+)$')
  for _, part in ipairs({ listed[i], listed[i + 1] - NOW, tonumber(ticket), tonumber(since) }) do
    answer[#answer + 1] = part
  end
end
return answer
