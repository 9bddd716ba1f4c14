-- What the store has of tasks that were parked, and whose messages the broker keeps until that is safe. What
-- is waited for on this connection after this call covers all that was written before it.
-- KEYS, ARGV[1] as in shared/begin.lua; ARGV[2] an array (JSON) of { task id, attempt, nonce }.
-- Returns for each 0 nothing: it is lost; 1 its message; 2 that nobody needs its message any more.
local LOST, THERE, DONE = 0, 1, 2

local function look(task, attempt)
  if has_run(task, attempt) then return DONE end
  local record = mend_record(task)
  if load_second(task) or redis.call('HEXISTS', ASIDE, task) == 1 then return THERE end
  if not record then return LOST end
  if redis.call('HEXISTS', MESSAGES, task) == 1 then return THERE end
  -- It was acknowledged early, and has begun. Or a holder has put itself back, without its message.
  return is_unacked(record) and DONE or LOST
end

local found = {}
for i, each in ipairs(object()) do found[i] = look(unpack(each)) end
serve()
-- A write, or there is nothing to be waited for; one that a full store allows.
redis.call('PEXPIRE', WORKERS, 2 * KEPT_MS)
return found
