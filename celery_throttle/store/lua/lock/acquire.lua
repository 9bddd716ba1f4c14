-- Take an identity lock, or report its owner; the present owner gets the same grant again.
-- KEYS[1] lock   STRING  as in grant.lua
-- KEYS[2] fence  STRING  the last fencing token granted under this prefix
-- ARGV[1] owner, a nonce chosen by the caller
-- ARGV[2] lease (ms), from now on at least
-- Returns {answer, fencing token, since (us), lease left (ms), owner}. Answer 1: granted by this call, 2:
-- held already by this owner, 0: held by another owner. Times are the store's.
local FENCE = KEYS[2]
local HELD_BY_ANOTHER, GRANTED, HELD_ALREADY = 0, 1, 2
local owner, lease_ms = ARGV[1], tonumber(ARGV[2])

local function text(number)
  return string.format('%.0f', number)
end

local token, since_us, holder = present_grant()
if token then
  local left_ms, answer = redis.call('PTTL', LOCK), HELD_BY_ANOTHER
  if holder == owner then
    answer = HELD_ALREADY
    -- Never shorten the lease: a repeated call must not undo a renewal.
    if left_ms < lease_ms then
      redis.call('PEXPIRE', LOCK, lease_ms)
      left_ms = lease_ms
    end
  end
  return { answer, tonumber(token), tonumber(since_us), left_ms, holder }
end

local clock = redis.call('TIME')
local now_us = clock[1] * 1000000 + clock[2]
-- Tokens must grow. The clock ensures that after a loss of data, the last token after the clock was set back.
local next_token = math.max(tonumber(redis.call('GET', FENCE) or 0) + 1, now_us)
redis.call('SET', LOCK, text(next_token) .. ' ' .. text(now_us) .. ' ' .. owner, 'PX', lease_ms)
redis.call('SET', FENCE, text(next_token))
return { GRANTED, next_token, now_us, lease_ms, owner }
