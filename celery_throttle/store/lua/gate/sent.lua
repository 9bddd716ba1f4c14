-- Let a claim last, because the message of its task was sent. A claim that another task has taken, that has
-- ended, or whose task has begun stays as it is.
-- KEYS, ARGV[1] as in shared/begin.lua; then
--   identity
--   task id
--   claim
--   how long the lock lasts at least (ms: until its ETA or while the task may wait)
--   1 if the message is that of a retry
-- Returns 1: the claim lasts, 0: it stays.
redis.call('ZREM', LEASES, '')
local identity, task, claim = argument(), argument(), argument()
local till, is_retry = NOW + number(), argument() == '1'
local lasts = keep_claim(identity, task, claim, till, is_retry)
serve()
return lasts and 1 or 0
