-- Return the state of limits.
-- KEYS, ARGV[1] as in shared/begin.lua; then n, n buckets, rates to compute with, in the form of a
-- declaration ('': the present ones).
-- Returns { now (ms), rows as JSON }, see shared/reading.lua. Writes nothing.
state.only_reads = true
local rows, buckets = {}, {}
for i = 1, number() do buckets[i] = argument() end
local rates = object()
for i, bucket in ipairs(buckets) do
  if rates then rule_of(bucket).rates = rates end
  rows[i] = standing(bucket)
end
return { NOW, cjson.encode(rows) }
