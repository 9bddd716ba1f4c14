-- Readable: stored values that are what they have to be; see shapes.lua.
local WHOLE_END = 9007199254740991

local function is_number(value)
  return type(value) == 'number' and value > -NUMBERS_END and value < NUMBERS_END
end

local function is_a(value, what)
  if what == 'string' then return type(value) == 'string' end
  if what == 'number' then return is_number(value) end
  if what == 'whole' then return is_number(value) and value >= 0 and value % 1 == 0 end
  if what == 'name' then return type(value) == 'string' and not string.find(value, '%z') end
  if what == 'digits' then return type(value) == 'string' and is_digits(value) end
  if what == 'rank' then return type(value) == 'string' and #value == 16 and is_digits(value) end
  if what == 'verdict' or what == 'state' then return is_one_of(value, what) end
  if what == 'plan' or what == 'newest' then return not wrong_part(value, what) end
  return is_list(value, what)
end

local function is_digits(text)
  return string.find(text, '^%d+$') ~= nil and #text <= 16 and tonumber(text) <= WHOLE_END
end

local function is_one_of(value, what)
  local words = 'queued running done failed started'
  if what == 'verdict' then words = 'run follow next conclude duplicate skip replaced done' end
  return type(value) == 'string' and string.find(' ' .. words .. ' ', ' ' .. value .. ' ', 1, true) ~= nil
end

-- Objects and arrays whose parts are all alike.
local function is_list(value, what)
  if type(value) ~= 'table' then return false end
  if what == 'turn' then
    local bucket, who, step, more = unpack(value)
    return more == nil and is_a(bucket, 'name') and is_a(who, 'name') and is_number(step)
  end
  for name, part in pairs(value) do
    if (type(name) == 'string') ~= (what == 'counts' or what == 'spoken') then return false end
    if what == 'counts' or what == 'numbers' then
      if type(part) ~= 'number' or not (part > -math.huge and part < math.huge) then return false end
    elseif what == 'texts' then
      if type(part) ~= 'string' then return false end
    elseif not is_row(part, what, name) then
      return false
    end
  end
  return true
end

local function is_row(row, what, name)
  if type(row) ~= 'table' then return false end
  local first, second, third, fourth, since, more = unpack(row)
  if what == 'pairs' then return type(first) == 'string' and type(second) == 'string' end
  if what == 'lost runs' then return not wrong_part(row, 'lost run') end
  if what == 'spoken' then
    local signed = type(third) == 'string' and type(fourth) == 'string'
    local fine = name == 'rate' and is_list(first, 'rates') or name ~= 'rate' and is_number(first)
    return signed and fine and is_number(second) and is_number(since) and more == nil
  end
  local numbers = is_number(first) and is_number(second) and is_number(third)
  if what ~= 'rates' or not numbers or first < 1 or third < 1 or fourth ~= nil then return false end
  -- A second, a minute, an hour, a day (us).
  return second == 1000000 or second == 60000000 or second == 3600000000 or second == 86400000000
end

-- The object that was stored; else nil, and why it cannot be read.
local function readable(packed, kind)
  local decodes, value = pcall(cjson.decode, packed)
  -- Messages are any bytes, and what was set aside.
  local text = kind ~= 'aside' and kind ~= 'worker'
  local odd = text and string.find(packed, '[\128-\255]') and not is_utf8(packed)
  if not decodes or odd then return nil, 'not readable' end
  if type(value) ~= 'table' then return nil, 'written by another release' end
  if kind == 'spoken' or kind == 'counts' then
    if is_list(value, kind) then return value end
    return nil, 'not readable'
  end
  local has_version = kind ~= 'worker' and kind ~= 'lane' and kind ~= 'rule'
  if has_version and value.v ~= VERSION then return nil, 'written by another release' end
  local wrong = wrong_part(value, kind)
  if wrong then return nil, 'not readable: ' .. wrong end
  return value
end
