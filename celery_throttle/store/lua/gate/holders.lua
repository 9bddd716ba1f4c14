-- Return the holders of permits or identity locks, a page at a time, in the order in which their leases end.
-- KEYS, ARGV[1] as in shared/begin.lua; then how many to skip, and how many to look at.
-- Returns { now (ms), 1 if there are more, { { task id, record, end of its lease (ms) }, ... } }. Writes
-- nothing.
state.only_reads = true
local from, count = number(), number()
local found = redis.call('ZRANGE', LEASES, from, from + count - 1, 'WITHSCORES')
local rows = {}
for i = 1, #found, 2 do
  local packed = redis.call('HGET', RECORDS, found[i]) or ''
  local record = record_in(packed)
  local holds = record and record.nonce and record.since
  if holds then rows[#rows + 1] = { found[i], packed, till_of(found[i + 1]) } end
end
return { NOW, #found == 2 * count and 1 or 0, rows }
