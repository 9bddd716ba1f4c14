-- List the limits, and their keys that are held, awaited or overridden, a page at a time.
-- KEYS, ARGV[1] as in shared/begin.lua; then where to look ('limits', 'overrides', 'used', 'waiting'), where
-- to go on ('' at first).
-- Returns { where to go on ('' after the last page), { bucket, ... } }. Writes nothing.
state.only_reads = true
local sources = { limits = LIMITS, overrides = OVERRIDES, used = USED, waiting = WAITING }
local source, from = sources[argument()], argument()
local page = redis.call('HSCAN', source, from == '' and '0' or from, 'COUNT', 256)
local names = {}
for i = 1, #page[2], 2 do names[#names + 1] = page[2][i] end
return { page[1] == '0' and '' or page[1], names }
