-- Say who holds a permit or an identity lock, a page at a time, those first whose lease ends first.
-- KEYS, ARGV[1..4] as in common.lua (slots 0); then how many to go past, and how many to look at.
-- Returns { now (ms), 1 if there are more, { { task id, record, end of its lease (ms), 1 if it holds permits }, ... } }; a
-- record as in common.lua. Writes nothing.
local from, count = tonumber(argument()), tonumber(argument())
local found = redis.call('ZRANGE', LEASES, from, from + count - 1, 'WITHSCORES')
local rows = {}
for i = 1, #found, 2 do
  local record = load_record(found[i])
  if record and record[STATE] == 'H' then
    rows[#rows + 1] = { found[i], redis.call('HGET', RECORDS, found[i]), tonumber(found[i + 1]), counted(record) and 1 or 0 }
  end
end
return { NOW, #found == 2 * count and 1 or 0, rows }
