-- Take an identity lock away from whoever has it; a task that runs goes on.
-- KEYS, ARGV[1..4] as in common.lua (slots 0); then identity, and the task id that has it ('': whichever has).
-- Returns 1: taken away, 0: there was no such lock.
redis.call('ZREM', LEASES, '')
open_locks()
local identity, task = argument(), argument()
local lock = load_lock(identity)
if not lock or lock[L_STATE] == 'S' or task ~= '' and lock[L_TASK] ~= task then return 0 end
pass_lock_on(identity, lock, LEASE_MS)
for _, line in ipairs(joined) do promote(line) end
return 1
