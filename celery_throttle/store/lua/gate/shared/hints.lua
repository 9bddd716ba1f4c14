-- Hints: messages to other workers about tasks that the caller cannot start. Hints are optional, because each
-- worker also looks by itself now and then.

local function hint(text)
  if state.mute then return end
  -- The user may lack the right to publish: hints are optional, see doctor.
  local answer = redis.pcall('PUBLISH', WAKE, text)
  if type(answer) == 'table' and answer.err then state.mute = true end
end
