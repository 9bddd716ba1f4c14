-- Readable: decoding stored values, with a check of their form; see shapes.lua.

-- Return the first malformed part of an object; nil if there is none. The kinds that each call reads have
-- functions of their own, because each call would have to make a table for such a kind again.
local function wrong_part(object, kind)
  if kind == 'record' or kind == 'worker' or kind == 'lane' then
    local odd = unwritable_part(object, kind)
    if odd then return odd end
    if kind == 'record' then return wrong_in_record(object) end
    return kind == 'worker' and wrong_in_worker(object) or kind == 'lane' and wrong_in_lane(object) or nil
  end
  local wrong = wrong_by_shape(object, kind)
  if wrong then return wrong end
  if kind == 'rule' and object.rates ~= nil and not is_rates(object.rates) then return 'rates' end
  return kind == 'lost' and not is_list(object.runs, 'lost runs') and 'runs' or nil
end

-- Return the stored value. Messages and values set aside may be any bytes; all else is text.
local function decoded(packed, kind)
  local decodes, value = pcall(cjson.decode, packed)
  local text = kind ~= 'aside' and kind ~= 'worker'
  local odd = text and string.find(packed, '[\128-\255]') and not is_utf8(packed)
  if decodes and not odd then return value end
end

-- Return the stored object; else nil and the reason.
local function readable(packed, kind)
  local value = decoded(packed, kind)
  if value == nil then return nil, 'not readable' end
  if type(value) ~= 'table' then return nil, 'written by another release' end
  if kind == 'overrides' or kind == 'counts' then
    if is_list(value, kind) then return value end
    return nil, 'not readable'
  end
  local has_version = kind ~= 'worker' and kind ~= 'lane' and kind ~= 'rule'
  if has_version and value.v ~= VERSION then return nil, 'written by another release' end
  local wrong = wrong_part(value, kind)
  if wrong then return nil, 'not readable: ' .. wrong end
  return value
end

-- Add to a record the parts that can be read of one that is unreadable as a whole.
local function add_readable(record, packed)
  local value = decoded(packed, 'record')
  if type(value) ~= 'table' or value.v ~= VERSION then return end
  if value.second ~= nil and is_wrong_second(value.second) then value.second = nil end
  if value.finished ~= nil and is_wrong_finished(value.finished) then value.finished = nil end
  if value.awaited ~= nil and not is_a(value.awaited, 'whole') then value.awaited = nil end
  if wrong_part(value, 'record') then
    value = { second = value.second, finished = value.finished, awaited = value.awaited }
  end
  for name, part in pairs(value) do record[name] = record[name] or part end
end
