-- Declared: what workers say that their limits are; see permits.lua.

-- What was declared of a limit; nothing can start on one of which nothing is known.
local function declared_of(limit)
  local declared = redis.call('HGET', LIMITS, limit) or '0'
  if is_digits(declared) then return { permits = tonumber(declared), max_parked = 0 } end
  local rule, why = readable(declared, 'rule')
  if rule then return rule end
  note_unreadable(LIMITS, 'limits', limit, declared, why)
  return { permits = 0, max_parked = 0 }
end

-- The workers say again what their limits are, as to a store that was emptied; it was not, so nothing has to
-- settle: the time when its data began is no time of theirs.
local function ask_for_declarations()
  local birth = redis.call('HGET', META, 'birth')
  if not birth or not is_digits(birth) then return end
  birth = string.format('%.0f', birth + 1)
  redis.call('HSET', META, 'birth', birth)
  hint('birth ' .. birth)
end

-- Whether somebody has said what the limits are since the data began; the caller, too, if it knows of another
-- birth.
local function is_known(known)
  local birth, settling_till = unpack(redis.call('HMGET', META, 'birth', 'settling'))
  if birth and not settling_till then state.settling = 0 end
  return birth and is_digits(birth) and (known or birth) == birth
end
