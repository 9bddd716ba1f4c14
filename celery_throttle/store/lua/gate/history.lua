-- Return what was counted of limits, as count.lua keeps it.
-- KEYS, ARGV[1] as in shared/begin.lua; KEYS[26..] the rings.
-- Returns { now (ms), { ring, ... } }, '' for one that is not there. Writes nothing.
local rings = {}
for i = 26, #KEYS do
  local ring = KEYS[i]
  rings[#rings + 1] = redis.call('GET', ring) or ''
end
return { NOW, rings }
