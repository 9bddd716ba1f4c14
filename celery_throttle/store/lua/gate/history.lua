-- Return the history of limits, as add_history.lua keeps it.
-- KEYS, ARGV[1] as in shared/begin.lua; the KEYS after those are the rings.
-- Returns { now (ms), { ring, ... } }, '' for a missing ring. Writes nothing.
state.only_reads = true
local rings = {}
for i = LAST_KEY + 1, #KEYS do
  local ring = KEYS[i]
  rings[#rings + 1] = redis.call('GET', ring) or ''
end
return { NOW, rings }
