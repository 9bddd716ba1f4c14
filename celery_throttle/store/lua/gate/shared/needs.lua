-- Needs: what a task takes of its buckets.
--
-- A bucket is a limit's name, or name \31 key. What a task needs is text: for each bucket its cost, 'b' if
-- its start was booked before, a colon and the bucket, with \1 between them, those with a key first:
-- '2:tenant\31acme\12:api'.

local COST_MOST = 100000

-- wrong: whether the text is not so. Nobody changes what this returns: it is the same for the same text.
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

-- What it takes of one bucket.
local function need_of(text, bucket)
  for _, need in ipairs(needs_of(text)) do
    if need.bucket == bucket then return need end
  end
  return { bucket = bucket, cost = 1 }
end

local function limit_of(bucket)
  return string.match(bucket, '^[^\31]*')
end
