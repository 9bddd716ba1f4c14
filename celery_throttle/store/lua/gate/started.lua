-- Forget the messages of early-ack tasks that have started, when there is nothing else to say; so it loads nothing shared.
-- KEYS[1] records HASH, KEYS[2] messages HASH: as in common.lua.
-- ARGV[1..] task id, nonce, ...
-- Returns 1.
local RECORDS, MESSAGES = KEYS[1], KEYS[2]
for i = 1, #ARGV, 2 do
  local record = redis.call('HGET', RECORDS, ARGV[i])
  if record and cjson.decode(record)[2] == ARGV[i + 1] then redis.call('HDEL', MESSAGES, ARGV[i]) end
end
return 1
