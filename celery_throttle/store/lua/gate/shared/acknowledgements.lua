-- Acknowledgements: which messages of a parked task the broker has, too; see told and unacked in records.lua.

-- The broker has the message of this delivery, too: until its worker says otherwise, or calls again.
local function await_acknowledgement(record, delivery)
  if delivery.unacked then
    record.unacked = record.unacked or {}
    record.unacked[delivery.nonce] = 1
  else
    record.told = record.told or {}
    record.told[state.worker] = state.call
  end
end

-- Two parked messages of one attempt become one.
local function await_both(record, other)
  for _, kind in ipairs({ 'told', 'unacked' }) do
    for name, call in pairs(other[kind] or {}) do
      record[kind] = record[kind] or {}
      record[kind][name] = math.max(record[kind][name] or 0, call)
    end
  end
end

-- Whether its message was at the broker; it is not any more.
local function was_unacked(record, nonce)
  if not record or not record.unacked or not record.unacked[nonce] then return false end
  record.unacked[nonce] = nil
  if not next(record.unacked) then record.unacked = nil end
  return true
end
