-- Declared: the limits as workers declare them; see permits.lua.

-- Return the declaration of a limit. A limit without a readable declaration has no permits, so nothing can
-- start.
local function declared_of(limit)
  local declared = redis.call('HGET', LIMITS, limit) or '0'
  if is_digits(declared) then return { permits = tonumber(declared), max_parked = 0 } end
  local rule, why = readable(declared, 'rule')
  if rule then return rule end
  note_unreadable(LIMITS, 'limits', limit, declared, why)
  return { permits = 0, max_parked = 0 }
end

-- Return when the data of this store began. The data of a store that was emptied begins now.
local function begin_data()
  local birth = redis.call('HGET', META, 'birth')
  if birth and is_digits(birth) then return birth end
  birth = string.format('%.0f', NOW_US)
  redis.call('HSET', META, 'birth', birth)
  hint('birth ' .. birth)
  return birth
end

-- Make workers declare their limits again, as to a store that was emptied. The birth changes by 1 us only, so
-- the data counts as old and nothing has to settle.
local function ask_for_declarations()
  local birth = redis.call('HGET', META, 'birth')
  if not birth or not is_digits(birth) then return end
  birth = string.format('%.0f', birth + 1)
  redis.call('HSET', META, 'birth', birth)
  hint('birth ' .. birth)
end

-- Return whether limits were declared since the data began. known: the birth that the caller sent; a caller
-- with another birth has not declared its limits to this data.
local function is_known(known)
  local birth, settling_till = unpack(redis.call('HMGET', META, 'birth', 'settling'))
  if birth and not settling_till then state.settling = 0 end
  return birth and is_digits(birth) and (known or birth) == birth
end
