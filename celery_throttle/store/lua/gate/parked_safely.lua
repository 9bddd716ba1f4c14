-- Check parked tasks whose messages the broker keeps until the store has saved them. A WAIT on this
-- connection after this call covers all earlier writes.
-- KEYS, ARGV[1] as in shared/begin.lua; ARGV[2] an array (JSON) of { task id, attempt, nonce, publication }.
-- Returns for each 0: the task is lost; 1: the store has its message; 2: its message is not needed any more.
local LOST, THERE, DONE = 0, 1, 2

local function look(task, attempt, _, publication)
  publication = publication ~= '' and publication or nil
  if finished_as(task, { attempt = attempt, publication = publication }) then return DONE end
  local record = mend_record(task)
  if load_second(task) or redis.call('HEXISTS', ASIDE, task) == 1 then return THERE end
  if not record then return LOST end
  if redis.call('HEXISTS', MESSAGES, task) == 1 then return THERE end
  -- The task was acknowledged early and has begun, or its holder has put itself back without the message.
  return is_unacked(record) and DONE or LOST
end

local found = {}
for i, each in ipairs(object()) do found[i] = look(unpack(each)) end
serve()
-- Write something, because WAIT has nothing to wait for otherwise. A full store allows this write.
redis.call('PEXPIRE', WORKERS, 2 * KEPT_MS)
return found
