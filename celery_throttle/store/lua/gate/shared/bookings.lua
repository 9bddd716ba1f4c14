-- Bookings: what KEYS rates keeps of a bucket, once it is what it has to be; see rates.lua.

-- What is booked, as it is kept; nil if nothing is. No booking lasts for longer than it is kept.
local function load_booked(bucket)
  local packed = redis.call('HGET', RATES, bucket)
  if not packed then return nil end
  local decodes, kept = pcall(cjson.decode, packed)
  local fine = decodes and type(kept) == 'table'
  local till_us = tonumber(redis.call('ZSCORE', ENDS, 'rates:' .. bucket) or 0) * 1000
  for name, value in pairs(fine and kept or {}) do
    fine = fine and type(name) == 'string' and type(value) == 'string' and is_booked(name, value, till_us)
  end
  if fine and (kept.seen or next(kept) == nil) then return kept end
  drop_unreadable(RATES, 'rates', bucket, packed)
  return nil
end

-- Whether a part of what is booked may be so.
local function is_booked(name, value, till_us)
  if name == 'by' then return true end
  if name == 'seen' then return is_digits(value) end
  if name == 'at' then return is_digits(value) and tonumber(value) <= till_us end
  local us, parts = string.match(value, '^(%d+) (%d+)$')
  if not us then us, parts = string.match(value, '^(%d+) (%d+) %d+ %d+$') end
  local known = string.find(name, '^[1-9]%d*/[1-9]%d*/[1-9]%d*$') and #name < 48
  return known and us ~= nil and #parts <= 16 and tonumber(us) <= till_us
end
