-- Something was said of a limit: hint to all who can start somebody from its lines, of whatever key, a page of lines at a time.
-- KEYS, ARGV[1..4] as in common.lua (slots 0); then limit (or limit \31 key), the time (us) that names the change, and the line
-- to go on after ('' at first).
-- Returns the line to go on after, '' when that were all.
--
-- A look serves MAX_LINES lines, and the next one those after them. Whoever hears the hint must not come to these lines some
-- looks later: KEYS[7] has at 'sweep:' .. queue a JSON array of the first line and the end of those that its workers look at
-- first (as bounds of KEYS[5]), and which change it was.
local limit, change, after = argument(), argument(), argument()
redis.call('ZREM', LEASES, '')
open_lines()
local last, many = '(' .. limit .. '\32', after ~= '' or #lines_from('[\4', '+', MAX_LINES) == MAX_LINES
local lines = lines_from(after == '' and '[' .. limit .. '\0' or '(' .. after .. '\1', last, MAX_LINES)

local function sweep(queue, line)
  local before = redis.call('HGET', META, 'sweep:' .. queue)
  before = before and cjson.decode(before)
  if before and before[3] == change then return end
  local bounds = { '[' .. line .. '\0', last, change }
  -- Two at once are one of everything.
  if before and before[2] ~= last then bounds = { '[\4', '+', change } end
  redis.call('HSET', META, 'sweep:' .. queue, cjson.encode(bounds))
end

for _, line in ipairs(lines) do
  for _, head in ipairs(line_heads(line)) do
    if many and not hinted[head[3]] then sweep(head[3], line) end
    hint(head[3])
  end
end
return #lines == MAX_LINES and lines[#lines] or ''
