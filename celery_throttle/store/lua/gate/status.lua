-- Say how limits stand.
-- KEYS, ARGV[1] as in shared/begin.lua; then n, n buckets.
-- Returns { now (ms), rows }, see shared/reading.lua. Writes nothing.
local rows = {}
for i = 1, number() do rows[i] = standing(argument()) end
return { NOW, rows }
