-- Give a booking back if it is still the last one.
-- KEYS[1] rate  HASH  as in bookings.lua
-- ARGV[1] id of the booking, ARGV[2] number of rates, then their fields.
-- Returns 1 if the booking is given back, now or by an earlier call; 0 if another booking followed, or the
-- store has forgotten this one.
local RATE = KEYS[1]
-- The position of the number of rates in ARGV.
local COUNT_AT = 2
local id, count = ARGV[1], tonumber(ARGV[2])

if redis.call('HGET', RATE, 'last') ~= id then return 0 end
-- The first write must be one that a full server allows.
if redis.call('HDEL', RATE, 'start') == 0 then return 1 end
for number = 1, count do
  local field = ARGV[COUNT_AT + number]
  -- A rate that was never booked has nothing to restore.
  local before = string.match(redis.call('HGET', RATE, field) or '', ' (%d+ %d+)$')
  if before then redis.call('HSET', RATE, field, before) end
end
return 1
