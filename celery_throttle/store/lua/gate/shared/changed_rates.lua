-- Changed rates: the bookings of a limit whose rate was another one at the last start. A change of rate
-- writes nothing, so a change that is reverted before the next start leaves no trace.

-- Return the kept rate whose spacing is nearest to this one, with its spacing and burst; nil if none is kept.
local function nearest_rate(kept, spacing)
  local nearest, least, its_spacing, its_burst
  for name in pairs(kept) do
    local count, period, burst = string.match(name, '^([1-9]%d*)/([1-9]%d*)/([1-9]%d*)$')
    local ratio = count and period / count / spacing
    local far = ratio and math.max(ratio, 1 / ratio)
    if far and (not least or far < least or far == least and ratio > 1) then
      nearest, least = { name = name, in_us = tonumber(count) }, far
      its_spacing, its_burst = period / count, tonumber(burst)
    end
  end
  return nearest, its_spacing, its_burst
end

-- Return how many more starts were allowed at once right after the last one.
local function free_then(kept, spacing, last_us)
  local rate, its_spacing, its_burst = nearest_rate(kept, spacing)
  local us, parts = string.match(kept[rate.name], '^(%d+) (%d+)')
  local booked_us = math.max(us - last_us + parts / rate.in_us, 0)
  return math.max(its_burst - booked_us / its_spacing, 0)
end

-- Return the end of the bookings of a rate that was another one at the last start (us and parts, as text). As
-- many tasks may start at once as before, up to the new burst. Each further start comes one spacing later. So
-- no window has more starts than the larger of the rates allows, however often they change.
local function booked_before(kept, spacing, burst)
  if not nearest_rate(kept, spacing) then return '0 0' end
  local last_us = tonumber(kept.at or kept.seen)
  -- No start is free after one that was booked for later, because others may have been booked before that
  -- one.
  local free = kept.at and 0 or math.min(free_then(kept, spacing, last_us), burst)
  return string.format('%.0f 0', last_us + math.ceil((burst - free) * spacing))
end
