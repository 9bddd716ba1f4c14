-- Free the identity lock of a task that will never run (its publishing failed), for the next waiting task.
-- KEYS, ARGV[1] as in shared/begin.lua; then identity, task id, the task whose outcome it would have asked
-- for ('': none).
-- Returns 1: the task had the lock (or was to run next), 0: it had not, or it runs.
redis.call('ZREM', LEASES, '')
local identity, task, first = argument(), argument(), argument()
local answer = give_up_lock(identity, task)
will_not_ask(identity, first)
serve()
return answer
