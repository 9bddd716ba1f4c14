-- Override a limit, or one key of a limit, at run time; or end an override.
-- KEYS, ARGV[1] as in shared/begin.lua; then
--   bucket
--   kind     'override', 'pause', 'disable' or 'hold'
--   value    '': end it; of an override permits, or an object of permits, rates or both (rates in the form of
--            a declaration); else 1
--   until    '0': for good, '+ms': for so long, or ms
--   by, why
--   request  '': none; names a request that was sent to several workers
-- Returns 1: done, 2: done before for the same request, 0: there was nothing to end, or -1: that time is
-- over. Call wake.lua after this script.
local bucket, what, value = argument(), argument(), argument()
local till, by, why, request = argument(), argument(), argument(), argument()
-- The first write is never refused, so that a pause can be ended even while the store is full.
redis.call('ZREM', LEASES, '')

local until_ms = tonumber(till)
if string.sub(till, 1, 1) == '+' then until_ms = NOW + until_ms end
if value ~= '' and until_ms ~= 0 and until_ms <= NOW then return -1 end

-- A late worker must not repeat an override that was ended since.
local changed = request ~= '' and changed_for(request)
if changed and changed[bucket] then return 2 end

-- The values by kind. An override of permits and one of the rate are stored separately, and ended together.
local values = { [what] = tonumber(value) or 1 }
if what == 'override' and value == '' then
  values.rate = 1
elseif what == 'override' and not tonumber(value) then
  local both = cjson.decode(value)
  values = { override = both.permits, rate = both.rates }
end

-- Return the present overrides of these kinds as one.
local function overrides_now(overrides)
  local one = values[what] and in_force({ overrides }, what)
  local rate = values.rate and in_force({ overrides }, 'rate')
  local either = one or rate
  if not either or not rate then return either or nil end
  local permits = one and one[VALUE] or false
  return { permits, either[UNTIL], either[BY], either[WHY], either[SINCE], rate[VALUE] }
end

-- A call that adds a field to KEYS ends also clears some.
reap_ends(4)
settle()
local overrides = load_overrides(bucket)
local before = overrides_now(overrides)
local permits_before, rates_before = permits_in_force(bucket), rule_of(bucket).rates
for part, one in pairs(values) do
  overrides[part] = value ~= '' and { one, until_ms, by, why, NOW } or nil
end
save_overrides(bucket, overrides)
-- Send this hint now, because the caller may be lost before it calls wake.lua.
hint('line ' .. bucket)
go_on_after(bucket, '')
serve()
if value == '' and not before then return changed and 2 or 0 end
local ends = { override = 'reset', pause = 'resume', disable = 'enable', hold = 'release-hold' }
note_change({
  action = value ~= '' and what or ends[what], bucket = bucket, by = by, why = why,
  request = request ~= '' and request or nil,
  before = before, after = value ~= '' and overrides_now(overrides) or nil,
  permits_before = permits_before, permits_after = permits_in_force(bucket),
  rates_before = rates_before, rates_after = rule_of(bucket).rates,
})
return 1
