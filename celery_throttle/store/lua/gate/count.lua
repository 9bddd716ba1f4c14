-- Add what a worker has counted of limits to their history, with how many hold and wait now.
-- KEYS, ARGV[1] as in shared/begin.lua; KEYS[26..] for each limit its ring of minutes and its ring of
-- quarters of an hour (see core/history.py): a STRING of slots, each of 32 numbers of 4 bytes, of which the
-- first is the period that it counts; then for each limit: its name, '' for one that has keys, and an array
-- (JSON) of place, count, ...
-- Returns how many limits these are.
local SLOT, HELD_MOST, PARKED_MOST, SAMPLES, KEPT_MS = 32, 29, 30, 31, 172800000

-- The place of the slot of now in its ring; emptied if it has counted another period.
local function slot_of(ring, period_ms, slots)
  local period = math.floor(NOW / period_ms)
  local first = period % slots * SLOT
  if redis.call('BITFIELD', ring, 'GET', 'u32', '#' .. first)[1] ~= period then
    redis.call('SETRANGE', ring, first * 4, string.rep('\0', SLOT * 4))
    redis.call('BITFIELD', ring, 'SET', 'u32', '#' .. first, period)
  end
  return first
end

local function add(ring, first, counts)
  local command = { 'BITFIELD', ring, 'OVERFLOW', 'SAT' }
  for i = 1, #counts, 2 do
    for _, each in ipairs({ 'INCRBY', 'u32', '#' .. first + counts[i], counts[i + 1] }) do
      command[#command + 1] = each
    end
  end
  redis.call(unpack(command))
  redis.call('PEXPIRE', ring, KEPT_MS)
end

local function keep_most(ring, place, number)
  if redis.call('BITFIELD', ring, 'GET', 'u32', '#' .. place)[1] < number then
    redis.call('BITFIELD', ring, 'SET', 'u32', '#' .. place, number)
  end
end

local function sample(ring, first, limit)
  keep_most(ring, first + HELD_MOST, tonumber(redis.call('HGET', USED, limit) or 0))
  keep_most(ring, first + PARKED_MOST, tonumber(redis.call('HGET', WAITING, limit) or 0))
  add(ring, first, { SAMPLES, 1 })
end

local periods = { { ms = 60000, slots = 60 }, { ms = 900000, slots = 96 } }
local limits = (#KEYS - 25) / 2
for i = 1, limits do
  local limit, counts = argument(), object()
  for j, period in ipairs(periods) do
    local ring = KEYS[23 + 2 * i + j]
    local first = slot_of(ring, period.ms, period.slots)
    add(ring, first, counts)
    if limit ~= '' then sample(ring, first, limit) end
  end
end
return limits
