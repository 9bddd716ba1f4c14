-- Give a booking back if it is still the last one.
-- KEYS[1] rate  HASH  as in rate_common.lua
-- ARGV[1] id of the booking, ARGV[2] number of rates, then their fields.
-- Returns 1 if it is given back, now or by an earlier call; 0 if another one followed it or it was forgotten.
local RATE, ID = KEYS[1], ARGV[1]
if redis.call('HGET', RATE, 'last') ~= ID then return 0 end
-- The first write must be one that a full server allows.
if redis.call('HDEL', RATE, 'start') == 0 then return 1 end
for i = 3, 2 + ARGV[2] do
  redis.call('HSET', RATE, ARGV[i], string.match(redis.call('HGET', RATE, ARGV[i]), ' (%d+ %d+)$'))
end
return 1
