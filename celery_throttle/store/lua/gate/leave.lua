-- A worker says goodbye: what only it needed goes.
-- KEYS, ARGV[1..4] as in common.lua; then worker id.
-- Returns 1.
redis.call('HDEL', META, 'park:' .. argument())
return 1
