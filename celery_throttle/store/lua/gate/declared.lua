-- Return the declarations of each worker, a page at a time, in no order.
-- KEYS, ARGV[1] as in shared/begin.lua; then where to go on ('' at first).
-- Returns { now (ms), where to go on ('' after the last page), rows, { declarations, JSON, ... } }. A row is
-- { worker, its last call (ms, 0: none, or the worker has left), number of its declarations }. A worker may
-- come twice. Writes nothing.
state.only_reads = true
local after, rows, texts, numbers = argument(), {}, {}, {}
local page = redis.call('HSCAN', META, after == '' and '0' or after, 'MATCH', 'declared:*', 'COUNT', 100)
for i = 1, #page[2], 2 do
  local worker, text = string.sub(page[2][i], 10), page[2][i + 1]
  -- Most workers have the same declarations.
  if not numbers[text] then
    texts[#texts + 1] = text
    numbers[text] = #texts
  end
  local known = readable(redis.call('HGET', WORKERS, id_of(worker)) or '', 'worker')
  rows[#rows + 1] = { worker, known and known.since or 0, numbers[text] }
end
return { NOW, page[1] == '0' and '' or page[1], rows, texts }
