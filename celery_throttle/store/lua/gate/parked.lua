-- Say who is parked, line by line, first come first.
-- KEYS, ARGV[1..4] as in common.lua (slots 0); then limit (or limit \31 key; with all its keys), 1 if all lines are meant
-- instead, and how many at most.
-- Returns { { line, place, task id, record, head of its message }, ... }; a line is a limit, or as in locks.lua. Writes nothing.
local limit, all, most = argument(), argument() == '1', tonumber(argument())
open_lines()
local first, last = '[' .. limit .. '\0', '(' .. limit .. '\32'
if all then first, last = '-', '+' end

-- The first of a line, of whatever queue: { ticket, task id }.
local function in_order(line, count)
  local found = {}
  for _, head in ipairs(line_heads(line)) do
    local from = line .. '\0' .. head[3]
    local members = redis.call('ZRANGEBYLEX', PARKED, '[' .. from .. '\0', '(' .. from .. '\1', 'LIMIT', 0, count)
    for _, member in ipairs(members) do
      found[#found + 1] = { string.sub(member, #from + 2, #from + 17), string.sub(member, #from + 18) }
    end
  end
  table.sort(found, function(a, b) return a[1] < b[1] end)
  return found
end

local rows = {}
for _, line in ipairs(lines_from(first, last, most)) do
  for place, each in ipairs(in_order(line, most - #rows)) do
    if #rows >= most then return rows end
    rows[#rows + 1] = { line, place, each[2], redis.call('HGET', RECORDS, each[2]) or '', head_of(each[2]) }
  end
end
return rows
