-- Take an identity lock away from whoever has it; a task that runs goes on.
-- KEYS, ARGV[1..4] as in common.lua (slots 0); then identity, and the task id that has it ('': whichever has).
-- Returns 1: taken away, 0: there was no such lock.
redis.call('ZREM', LEASES, '')
open_locks()
local identity, task = argument(), argument()
local lock = live_lock(identity)
if not lock or lock[L_STATE] == 'S' or task ~= '' and lock[L_TASK] ~= task then return 0 end
local record = load_record(lock[L_TASK])
if record and record[STATE] == 'H' and record[LOCK] and record[LOCK][IDENTITY] == identity
  and record[LOCK][VERDICT] == 'run' then
  record[LOCK][AWAITED_FIRST] = record[LOCK][AWAITED_FIRST] or record[LOCK][FIRST]
  record[LOCK][UNLOCKED] = 1
  save_record(lock[L_TASK], record)
end
pass_lock_on(identity, lock, LEASE_MS)
for _, line in ipairs(joined) do promote(line) end
return 1
