-- Numbers that grow: places in line, fencing tokens and claims, and what META keeps of them.

-- How far the clock may have been set back (tenths of a ms), and where numbers stop being exact.
local AHEAD_MOST, STAMPS_END = 8640000000, 9007199254740000

-- A number that META keeps; 0 if there is none, or if it cannot be read, or is more than it can be.
local function meta_number(field, most)
  local kept = redis.call('HGET', META, field)
  if not kept then return 0 end
  local number = tonumber(kept)
  if number and number >= 0 and number <= most then return number end
  -- Too large also if the clock was set back.
  local too_large = number and number > most and number < NUMBERS_END
  if not too_large then note_unreadable(META, 'meta', field, kept) end
  return 0
end

-- A place in line is when it came, in tenths of a ms (cjson keeps 14 digits), never twice the same but for
-- those that a worker had for a while (age_ms) before the store heard of them.
local function next_ticket(age_ms)
  -- One from far in the future was never given.
  local last, now = meta_number('ticket', math.floor(NOW_US / 100) + AHEAD_MOST), math.floor(NOW_US / 100)
  local ticket = math.max(now, last + 1)
  redis.call('HSET', META, 'ticket', string.format('%.0f', ticket))
  return ticket - math.floor((age_ms or 0) * 10)
end

-- Fencing tokens and claims. The clock keeps them growing when the last one is lost with the data, the
-- last one when the clock is set back. Text: cjson loses digits of numbers beyond 10^14.
local function next_stamp()
  local stamp = string.format('%.0f', math.max(meta_number('stamp', STAMPS_END) + 1, NOW_US))
  redis.call('HSET', META, 'stamp', stamp)
  return stamp
end
