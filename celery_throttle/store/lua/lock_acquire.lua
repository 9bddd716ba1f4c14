-- Take an identity lock, or say who has it; its owner gets the same grant again, for at least this lease from now.
-- KEYS[1] lock   STRING  '<fencing token> <since (us)> <owner>', expires with the lease; no key while nobody has it
-- KEYS[2] fence  STRING  the last fencing token granted under this prefix
-- ARGV[1] owner, a nonce chosen by the caller
-- ARGV[2] lease (ms)
-- Returns {answer, fencing token, since (us), lease left (ms), owner}; answer 1: granted by this call, 2: held already by
-- this owner, 0: held by another. Times are the store's.
local LOCK, FENCE, OWNER, LEASE_MS = KEYS[1], KEYS[2], ARGV[1], tonumber(ARGV[2])
local clock = redis.call('TIME')
local NOW = clock[1] * 1000000 + clock[2]

local record = redis.call('GET', LOCK)
if record then
  local token, since, owner = string.match(record, '^(%d+) (%d+) (.*)$')
  local left, answer = redis.call('PTTL', LOCK), 0
  if owner == OWNER then
    answer = 2
    if left < LEASE_MS then
      redis.call('PEXPIRE', LOCK, ARGV[2])
      left = LEASE_MS
    end
  end
  return { answer, tonumber(token), tonumber(since), left, owner }
end

-- The clock keeps tokens growing when the last one is lost with the data, the last one when the clock is set back.
local token = math.max(tonumber(redis.call('GET', FENCE) or 0) + 1, NOW)
local written = string.format('%.0f', token)
redis.call('SET', LOCK, written .. ' ' .. string.format('%.0f', NOW) .. ' ' .. OWNER, 'PX', ARGV[2])
redis.call('SET', FENCE, written)
return { 1, token, NOW, LEASE_MS, OWNER }
