-- Add the counts that a worker has collected of limits to their history, with the present holders and waiting
-- tasks.
-- KEYS, ARGV[1] as in shared/begin.lua; then three KEYS for each limit: its ring of minutes, its ring of
-- quarters of an hour, and its totals (see core/history.py). Each is a STRING of slots, each slot 32 numbers
-- of 4 bytes. The first number of a slot is its period. Then for each limit: its name ('' if the limit has
-- keys), and an array (JSON) of place, count, ...
-- Returns the number of limits.
local SLOT, HELD_MOST, PARKED_MOST, KEPT_MS = 32, 29, 30, 172800000

-- Return the position of the present slot in its ring. A slot of another period is emptied first.
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

-- Store one more than the number, because 0 means that there is none.
local function keep_most(ring, place, number)
  if redis.call('BITFIELD', ring, 'GET', 'u32', '#' .. place)[1] <= number then
    redis.call('BITFIELD', ring, 'SET', 'u32', '#' .. place, number + 1)
  end
end

local function sample(ring, first, limit)
  keep_most(ring, first + HELD_MOST, tonumber(redis.call('HGET', USED, limit) or 0) or 0)
  keep_most(ring, first + PARKED_MOST, tonumber(redis.call('HGET', WAITING, limit) or 0) or 0)
end

-- Totals begin again at 0 when they are full, as counters do; readers expect that.
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
