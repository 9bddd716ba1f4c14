-- Lend out parked tasks, so that their messages can be published again; unparked.lua ends that.
-- A lent task is held without permits, and another delivery of the task waits. If the lease ends first, the
-- task goes back to its place.
-- KEYS, ARGV[1] as in shared/begin.lua; then nonce, most bytes of messages, n, n x task id.
-- Returns { how many of these tasks were looked at, { { task id, queue, message }, ... } }.
redis.call('ZREM', LEASES, '')
local nonce, room, count = argument(), number(), number()
local lent, looked_at = {}, 0
while looked_at < count and room > 0 do
  looked_at = looked_at + 1
  local task = argument()
  local queue = lend(task, nonce)
  if queue then
    local message = redis.call('HGET', MESSAGES, task) or ''
    lent[#lent + 1] = { task, queue, message }
    room = room - #message
  end
end
serve()
return { looked_at, lent }
