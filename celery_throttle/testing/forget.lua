-- Forget the tasks, locks, outcomes and changes of a store, but not its workers and their limits. Part of the
-- test kit.
-- KEYS records, ends, then the keys to delete
-- Returns the ids of the tasks that hold permits; if there are any, nothing was deleted.
local RECORDS, ENDS = KEYS[1], KEYS[2]

local held = {}
local records = redis.call('HGETALL', RECORDS)
for i = 1, #records, 2 do
  if cjson.decode(records[i + 1]).nonce then held[#held + 1] = records[i] end
end
if #held > 0 then return held end

for i = 3, #KEYS do redis.call('DEL', KEYS[i]) end
redis.call('DEL', RECORDS)
for _, member in ipairs(redis.call('ZRANGE', ENDS, 0, -1)) do
  if not string.match(member, '^workers:') and not string.match(member, '^meta:') then
    redis.call('ZREM', ENDS, member)
  end
end
return {}
