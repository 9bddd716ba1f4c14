-- Numbers that grow: tickets, fencing tokens and claims, and the numbers in META.

-- How far ahead a ticket may be, if the clock was set back (tenths of a ms); and the end of exact numbers.
local AHEAD_MOST, STAMPS_END = 8640000000, 9007199254740000

-- Return a number from META; 0 if the number is missing, unreadable or larger than possible.
local function meta_number(field, most)
  local kept = redis.call('HGET', META, field)
  if not kept then return 0 end
  local number = tonumber(kept)
  if number and number >= 0 and number <= most then return number end
  -- A number that is only too large is no error, because the clock may have been set back.
  local too_large = number and number > most and number < NUMBERS_END
  if not too_large then note_unreadable(META, 'meta', field, kept) end
  return 0
end

-- Return a place in line: the time of arrival, in tenths of a ms (cjson keeps 14 digits). No ticket is given
-- twice, except for tasks that a worker had for a while (age_ms) before its call.
local function next_ticket(age_ms)
  -- A last ticket from the far future was never given.
  local last, now = meta_number('ticket', math.floor(NOW_US / 100) + AHEAD_MOST), math.floor(NOW_US / 100)
  local ticket = math.max(now, last + 1)
  redis.call('HSET', META, 'ticket', string.format('%.0f', ticket))
  return ticket - math.floor((age_ms or 0) * 10)
end

-- Return a fencing token or claim. The clock keeps stamps growing if the last one is lost with the data. The
-- last one does so if the clock is set back. Stamps are text, because cjson loses digits of numbers beyond
-- 10^14.
local function next_stamp()
  local stamp = string.format('%.0f', math.max(meta_number('stamp', STAMPS_END) + 1, NOW_US))
  redis.call('HSET', META, 'stamp', stamp)
  return stamp
end
