-- Add what a worker has counted of limits to their history, with how many hold and wait now.
-- KEYS, ARGV[1] as in shared/begin.lua; the KEYS after those: for each limit its rings of minutes and of
-- quarters of an hour, and its totals (see core/history.py), a STRING of slots, each of 32 numbers of 4
-- bytes, of which the first is the period that it counts; then for each limit: its name, '' for one that has
-- keys, and an array (JSON) of place, count, ...
-- Returns how many limits these are.
local SLOT, HELD_MOST, PARKED_MOST, KEPT_MS = 32, 29, 30, 172800000

-- The place of the slot of now in its ring; emptied if it has counted another period.
local function slot_of(ring, kind)
  local period = kind.ms and math.floor(NOW / kind.ms) or 1
  local first = kind.ms and period % kind.slots * SLOT or 0
  if redis.call('BITFIELD', ring, 'GET', 'u32', '#' .. first)[1] ~= period then
    redis.call('SETRANGE', ring, first * 4, string.rep('\0', SLOT * 4))
    redis.call('BITFIELD', ring, 'SET', 'u32', '#' .. first, period)
  end
  return first
end

local function add(ring, first, counts, overflow)
  local command = { 'BITFIELD', ring, 'OVERFLOW', overflow }
  for i = 1, #counts, 2 do
    for _, each in ipairs({ 'INCRBY', 'u32', '#' .. first + counts[i], counts[i + 1] }) do
      command[#command + 1] = each
    end
  end
  redis.call(unpack(command))
  redis.call('PEXPIRE', ring, KEPT_MS)
end

-- One more than the number, since nothing is 0.
local function keep_most(ring, place, number)
  if redis.call('BITFIELD', ring, 'GET', 'u32', '#' .. place)[1] <= number then
    redis.call('BITFIELD', ring, 'SET', 'u32', '#' .. place, number + 1)
  end
end

local function sample(ring, first, limit)
  keep_most(ring, first + HELD_MOST, tonumber(redis.call('HGET', USED, limit) or 0) or 0)
  keep_most(ring, first + PARKED_MOST, tonumber(redis.call('HGET', WAITING, limit) or 0) or 0)
end

-- Totals begin anew when they are full, as counters do: who reads them expects that.
local rings = {
  { ms = 60000, slots = 60, full = 'SAT' }, { ms = 900000, slots = 96, full = 'SAT' }, { full = 'WRAP' },
}
local limits = (#KEYS - LAST_KEY) / #rings
for i = 1, limits do
  local limit, counts = argument(), object()
  for j, kind in ipairs(rings) do
    local ring = KEYS[LAST_KEY + (i - 1) * #rings + j]
    local first = slot_of(ring, kind)
    add(ring, first, counts, kind.full)
    if limit ~= '' then sample(ring, first, limit) end
  end
end
return limits
