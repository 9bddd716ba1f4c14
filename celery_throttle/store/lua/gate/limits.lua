-- Name the limits, and those of their keys that somebody holds, waits for or has said something of, a page at a time.
-- KEYS, ARGV[1..4] as in common.lua (slots 0); then where to look ('limits', 'used', 'parked'), where to go on ('' at first).
-- Returns { where to go on ('' when that were all), { limit or limit \31 key, ... } }. Writes nothing.
local source, from = argument(), argument()
open_lines()
if source == 'parked' then
  local lines = lines_from(from == '' and '[\4' or '(' .. from .. '\1', '+', MAX_LINES)
  return { #lines == MAX_LINES and lines[#lines] or '', lines }
end
if from == '' then from = '0' end
local page = source == 'used' and redis.call('HSCAN', USED, from, 'COUNT', MAX_LINES)
  or redis.call('HSCAN', LIMITS, from, 'COUNT', MAX_LINES)
local names = {}
for i = 1, #page[2], 2 do
  local field = page[2][i]
  names[#names + 1] = string.byte(field) == 1 and string.sub(field, 2) or field
end
return { page[1] == '0' and '' or page[1], names }
