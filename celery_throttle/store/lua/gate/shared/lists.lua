-- Lists: stored arrays and objects whose items are all alike; see shapes.lua.

-- Each rate is { count, period (us), burst }.
local function is_rates(value)
  if type(value) ~= 'table' then return false end
  for name, row in pairs(value) do
    if type(name) == 'string' or type(row) ~= 'table' then return false end
    local count, period, burst, more = unpack(row)
    local numbers = is_number(count) and is_number(period) and is_number(burst)
    if not numbers or count < 1 or burst < 1 or more ~= nil then return false end
    -- A second, a minute, an hour or a day (us).
    local known = period == 1000000 or period == 60000000 or period == 3600000000 or period == 86400000000
    if not known then return false end
  end
  return true
end

local function is_turn(value)
  if type(value) ~= 'table' then return false end
  local bucket, who, step, more = unpack(value)
  return more == nil and is_a(bucket, 'name') and is_a(who, 'name') and is_number(step)
end

-- Return whether this is a runtime override; see runtime_overrides.lua.
local function is_override(row, name)
  local value, till, by, why, since, more = unpack(row)
  local signed = type(by) == 'string' and type(why) == 'string'
  local fine = name == 'rate' and is_rates(value) or name ~= 'rate' and is_number(value)
  return signed and fine and is_number(till) and is_number(since) and more == nil
end

local function is_item(item, what, name)
  if type(item) ~= 'table' then return false end
  if what == 'lost runs' then return not wrong_by_shape(item, 'lost run') end
  if what == 'overrides' then return is_override(item, name) end
  local first, second = unpack(item)
  return type(first) == 'string' and type(second) == 'string'
end

-- 'counts' and 'overrides' are objects; 'numbers', 'texts', 'pairs' and 'lost runs' arrays.
local function is_list(value, what)
  if type(value) ~= 'table' then return false end
  for name, item in pairs(value) do
    if (type(name) == 'string') ~= (what == 'counts' or what == 'overrides') then return false end
    if what == 'counts' or what == 'numbers' then
      if type(item) ~= 'number' or not (item > -math.huge and item < math.huge) then return false end
    elseif what == 'texts' then
      if type(item) ~= 'string' then return false end
    elseif not is_item(item, what, name) then
      return false
    end
  end
  return true
end
