-- Report how many permits there are, their holders, and how many callers wait; changes nothing.
-- KEYS, ARGV[1], ARGV[2] ('') as in permits.lua
-- ARGV[3] how many holders to list at most
-- Returns {limit, waiting, then for each holder: permit, lease left (ms), ticket, since (us, store time)};
-- the lease that ends first comes first.
local LOOKS = KEYS[4]
local listed = ARGV[3]

local live = '(' .. text(now_ms)
local answer = { limit_now(), redis.call('ZCOUNT', LOOKS, live, '+inf') }
local found = redis.call('ZRANGEBYSCORE', LEASES, live, '+inf', 'WITHSCORES', 'LIMIT', 0, listed)
for i = 1, #found, 2 do
  local held, ends_ms = found[i], found[i + 1]
  local holder = holder_of(held)
  for _, part in ipairs({ held, ends_ms - now_ms, holder.ticket, holder.since_us }) do
    answer[#answer + 1] = part
  end
end
return answer
