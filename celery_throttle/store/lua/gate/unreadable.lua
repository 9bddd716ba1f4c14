-- Return the values that were set aside because they are unreadable.
-- KEYS, ARGV[1] as in shared/begin.lua; then how many at most.
-- Returns { { task id, an object of why, since (ms), record }, ... }. Writes nothing.
state.only_reads = true
local rows = {}
local page = redis.call('HSCAN', ASIDE, 0, 'COUNT', number())
for i = 1, #page[2], 2 do rows[#rows + 1] = { page[2][i], page[2][i + 1] } end
return rows
