-- Bookings: reading the bookings of a bucket from KEYS rates, with a check of their form; see rates.lua.

-- Return the stored bookings of a bucket, nil if there are none.
local function load_booked(bucket)
  local packed = redis.call('HGET', RATES, bucket)
  if not packed then return nil end
  local decodes, kept = pcall(cjson.decode, packed)
  local fine = decodes and type(kept) == 'table'
  for name, value in pairs(fine and kept or {}) do
    fine = fine and type(name) == 'string' and type(value) == 'string' and is_booked(bucket, name, value)
  end
  if fine and (kept.seen or next(kept) == nil) then return kept end
  note_unreadable(RATES, 'rates', bucket, packed)
  return nil
end

-- Return whether one part of the bookings is plausible. A time more than a minute ahead must come before the
-- end of the bookings in KEYS ends, because no booking outlasts its field.
local function is_booked(bucket, name, value)
  if name == 'by' then return true end
  if name == 'seen' then return is_digits(value) end
  local us, parts = value, ''
  if name ~= 'at' then us, parts = string.match(value, '^(%d+) (%d+)') end
  if not us or not is_digits(us) or #parts > 16 then return false end
  if tonumber(us) <= NOW_US + 60000000 then return true end
  return us / 1000 <= tonumber(redis.call('ZSCORE', ENDS, 'rates:' .. bucket) or 0)
end
