-- Drop parked tasks: they do not run, and a worker reports them as revoked.
-- KEYS, ARGV[1] as in shared/begin.lua; then the bucket that is dropped ('': only these tasks), by, why,
-- number of the change that this goes on with ('' at first), n, n x task id.
-- Returns { number of the change ('' if nothing was dropped), how many were dropped }.
redis.call('ZREM', LEASES, '')
local bucket, by, why, change = argument(), argument(), argument(), argument()
local count, dropped, last = number(), 0, nil
local reason = 'dropped by ' .. by .. (why ~= '' and ': ' .. why or '')
for _ = 1, count do
  local task = argument()
  if drop_parked(task, reason) then dropped, last = dropped + 1, task end
end
serve()
if dropped == 0 then return { change, 0 } end
local about = { action = 'drop', by = by, why = why }
if bucket ~= '' then about.bucket = bucket else about.task = last end
return { note_tasks(about, dropped, change), dropped }
