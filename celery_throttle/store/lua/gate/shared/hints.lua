-- Hints: what the caller cannot start others hear of. They are only hints: everybody looks now and then.

local function hint(text)
  if state.mute then return end
  -- A user without rights on the channel: hints are optional, see doctor.
  local answer = redis.pcall('PUBLISH', WAKE, text)
  if type(answer) == 'table' and answer.err then state.mute = true end
end
