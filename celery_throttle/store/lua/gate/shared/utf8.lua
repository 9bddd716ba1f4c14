-- UTF-8: whether bytes are text. cjson does not check that, but the readers outside of Lua do.

local function is_utf8(bytes)
  -- Replace each character by a blank, so that no character is made of the halves of two.
  local rest = string.gsub(bytes, '[\194-\223][\128-\191]', ' ')
  rest = string.gsub(rest, '\224[\160-\191][\128-\191]', ' ')
  rest = string.gsub(rest, '\237[\128-\159][\128-\191]', ' ')
  rest = string.gsub(rest, '[\225-\236\238\239][\128-\191][\128-\191]', ' ')
  rest = string.gsub(rest, '\240[\144-\191][\128-\191][\128-\191]', ' ')
  rest = string.gsub(rest, '[\241-\243][\128-\191][\128-\191][\128-\191]', ' ')
  rest = string.gsub(rest, '\244[\128-\143][\128-\191][\128-\191]', ' ')
  return not string.find(rest, '[\128-\255]')
end
