-- Hints: what the caller cannot start others hear of. They are only hints: everybody looks now and then.

local function hint(text)
  if state.mute then return end
  -- A user without rights on the channel: hints are optional, see doctor.
  local answer = redis.pcall('PUBLISH', WAKE, text)
  if type(answer) == 'table' and answer.err then state.mute = true end
end

local function hint_ready()
  local told = {}
  for _, each in ipairs(state.ready) do
    if not told[each.queue] and load_lane(each.lane).ticket then
      told[each.queue] = true
      hint('ready ' .. each.queue)
    end
  end
  for bucket in pairs(state.began) do
    if first_at(bucket) then hint('line ' .. bucket) end
  end
end
