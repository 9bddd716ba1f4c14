-- End the lending of parked tasks by unpark.lua: they are in their queues again, or could not be published.
-- KEYS, ARGV[1] as in shared/begin.lua; then
--   the nonce of unpark.lua
--   by, why
--   number of the change that this goes on with ('' at first)
--   n, n x id of a published task
--   n, n x id of a task that could not be published
-- Returns { number of the change ('' if nothing was changed), how many have left the store }.
redis.call('ZREM', LEASES, '')
local nonce, by, why, change = argument(), argument(), argument(), argument()
local gone = 0
for _ = 1, number() do
  if ended(argument(), nonce, false, 'broker', 'nothing') then gone = gone + 1 end
end
for _ = 1, number() do ended(argument(), nonce, false, 'place', 'nothing') end
serve()
if gone == 0 then return { change, 0 } end
return { note_tasks({ action = 'drain', by = by, why = why }, gone, change), gone }
