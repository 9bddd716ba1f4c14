-- Take an identity lock away from its task; a running task goes on.
-- KEYS, ARGV[1] as in shared/begin.lua; then identity, id of the task that has the lock ('': any task), name
-- of the task, by, why.
-- Returns 1: taken away, 0: there was no such lock.
redis.call('ZREM', LEASES, '')
local identity, task, name = argument(), argument(), argument()
local by, why = argument(), argument()
end_lock_if_over(identity)
local lock = load_lock(identity)
if not lock or lock.state == 'started' or task ~= '' and lock.task ~= task then return 0 end
local record = load_record(lock.task)
local plan = record and record.nonce and record.lock
if plan and plan.identity == identity and plan.verdict == 'run' then
  record.lock.unlocked = 1
  save_record(lock.task, record)
end
pass_lock_on(identity, lock, LEASE_MS)
note_change({ action = 'unlock', task = lock.task, name = name, by = by, why = why })
serve()
return 1
