-- Rates of buckets: when the next start is allowed, booking a start, giving a start back. The arithmetic is
-- that of gcra.lua.
--
-- KEYS rates: an object of text:
--   seen                  when the last start was booked (us)
--   by                    the nonce of that start
--   at                    when that start is, if later (us)
--   'count/period/burst'  one field a rate, 'us parts us parts': the end of its bookings, now and before the
--                         last start
local LATE_US = 100000

local function moved_back(booked_till, back)
  local moved = {}
  for us, parts in string.gmatch(booked_till, '(%d+) (%d+)') do
    moved[#moved + 1] = string.format('%.0f %s', math.max(us - back, 0), parts)
  end
  return table.concat(moved, ' ')
end

-- Return the bookings, and whether the clock was set back since. If so, the bookings move with the clock,
-- because nothing could start for as long otherwise.
local function kept_rates(bucket)
  local kept = load_booked(bucket) or {}
  local back = tonumber(kept.seen or 0) - NOW_US
  if back <= 0 then return kept, false end
  for name, booked_till in pairs(kept) do
    if string.find(name, '/') then kept[name] = moved_back(booked_till, back) end
  end
  kept.seen = string.format('%.0f', NOW_US)
  if kept.at then kept.at = string.format('%.0f', math.max(kept.at - back, 0)) end
  return kept, true
end

-- The clock was set back: store the moved bookings, so that waiting tasks come nearer to their starts before
-- the clock has caught up.
local function follow_clock(bucket)
  local kept = kept_rates(bucket)
  redis.call('HSET', RATES, bucket, cjson.encode(kept))
end

local function load_rates(bucket, rule, cost)
  local kept, was_set_back = kept_rates(bucket)
  local loaded = {}
  for i, declared in ipairs(rule.rates) do
    local count, period, burst = unpack(declared)
    local name = string.format('%.0f/%.0f/%.0f', count, period, burst)
    local us, parts = string.match(kept[name] or booked_before(kept, period / count, burst), '^(%d+) (%d+)')
    burst = math.max(burst, cost)
    loaded[i] = {
      name = name, in_us = count, spacing = period / count,
      us = tonumber(us), parts = tonumber(parts),
      cost_us = math.floor(cost * period / count), cost_parts = cost * period % count,
      burst_us = math.floor(burst * period / count), burst_parts = burst * period % count,
    }
  end
  return loaded, was_set_back
end

-- Return when the rates allow a start (us). A task that waited may start a little late, by less than one
-- spacing, and later starts do not shift by that. Otherwise every start would lose the time that it takes to
-- wake a worker.
local function allowed_at(loaded, waited)
  local start = 0
  for _, rate in ipairs(loaded) do
    local late = waited and math.min(LATE_US, math.max(math.floor(rate.spacing) - 1, 0)) or 0
    start = math.max(start, earliest(rate, NOW_US - late))
  end
  return start
end

-- Return how long (ms) until the rates allow a start, and whether the clock was set back since the last one.
local function rate_wait_ms(bucket, rule, cost)
  local loaded, was_set_back = load_rates(bucket, rule, cost)
  return math.max(math.ceil((allowed_at(loaded, true) - NOW_US) / 1000), 0), was_set_back
end

local function book_at(bucket, loaded, start, nonce)
  local kept, till = { seen = string.format('%.0f', NOW_US), by = nonce }, NOW_US
  if start > NOW_US then kept.at = string.format('%.0f', start) end
  for _, rate in ipairs(loaded) do
    local us, parts = booked(rate, start)
    kept[rate.name] = string.format('%.0f %.0f %.0f %.0f', us, parts, rate.us, rate.parts)
    till = math.max(till, us)
  end
  redis.call('HSET', RATES, bucket, cjson.encode(kept))
  -- A start may come late by this time, as in allowed_at.
  redis.call('ZADD', ENDS, math.ceil((till + LATE_US) / 1000) + 1, 'rates:' .. bucket)
  state.adds_ends = true
end

local function book_start(bucket, rule, cost, waited, nonce)
  local loaded = load_rates(bucket, rule, cost)
  book_at(bucket, loaded, math.min(allowed_at(loaded, waited), NOW_US), nonce)
end

-- Give back a start that was not made, unless another start has been booked since.
local function unbook_start(bucket, nonce)
  local kept = load_booked(bucket)
  if not kept or kept.by ~= nonce then return end
  for name, booked_till in pairs(kept) do
    local before = string.match(booked_till, '^%d+ %d+ (%d+ %d+)$')
    if before then kept[name] = before end
  end
  kept.by = nil
  redis.call('HSET', RATES, bucket, cjson.encode(kept))
end
