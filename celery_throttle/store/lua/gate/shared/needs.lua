-- Needs: the permits that a task takes, by bucket.
--
-- A bucket is the name of a limit, or name \31 key. Needs are text: for each bucket its cost, 'b' if its
-- start was booked before, a colon and the bucket, with \1 between buckets, those with a key first:
-- '2:tenant\31acme\12:api'.

local COST_MOST = 100000

-- wrong: the text is malformed. The result is shared by all needs with the same text, so it must not be
-- changed.
local function needs_of(text)
  local needs = state.needs[text]
  if needs then return needs end
  needs = {}
  local length = 0
  for cost, booked, bucket in string.gmatch(text, '(%d+)(b?):([^\1]+)') do
    needs[#needs + 1] = { bucket = bucket, cost = tonumber(cost), booked = booked == 'b' }
    length = length + #cost + #booked + #bucket + 2
    if tonumber(cost) < 1 or tonumber(cost) > COST_MOST then needs.wrong = true end
  end
  if length ~= (text == '' and 0 or #text + 1) or string.find(text, '%z') then needs.wrong = true end
  state.needs[text] = needs
  return needs
end

-- Return the need of one bucket.
local function need_of(text, bucket)
  for _, need in ipairs(needs_of(text)) do
    if need.bucket == bucket then return need end
  end
  return { bucket = bucket, cost = 1 }
end

local function limit_of(bucket)
  return string.match(bucket, '^[^\31]*')
end
