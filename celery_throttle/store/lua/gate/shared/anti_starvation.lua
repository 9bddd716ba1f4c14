-- Anti-starvation, by bars: a task that needs several limits and moved between their lines too often goes
-- first on all of them.
--
-- Until that task has left its line, no newer task starts on its buckets. A bucket has one such task at a
-- time, so that no two of them wait for each other.
local BAR_MS, MANY_MOVES = 60000, 8

-- place: that of the task in the line of the bucket.
local function barred(bucket, task, place)
  local bar = rule_of(bucket).bar
  return bar and bar[WHY] ~= task and place > bar[VALUE]
end

-- Return the needs on which a task may have bars: not those of sites, where the order of KEYS ready holds.
local function barred_needs(record)
  local needs = {}
  for _, need in ipairs(needs_of(record.needs)) do
    if not site_of(need.bucket) then needs[#needs + 1] = need end
  end
  return needs
end

local function raise_bar(task, record)
  local needs, all = barred_needs(record), {}
  for i, need in ipairs(needs) do
    all[i] = load_overrides(need.bucket)
    local bar = all[i].bar
    if bar and bar[WHY] ~= task and bar[UNTIL] > NOW then return end
  end
  for i, need in ipairs(needs) do
    all[i].bar = { place_at(need.bucket, record), NOW + BAR_MS, '', task, NOW }
    save_overrides(need.bucket, all[i])
  end
end

local function drop_bar(task, record)
  if (record.moves or 0) < MANY_MOVES then return end
  for _, need in ipairs(barred_needs(record)) do
    local overrides = load_overrides(need.bucket)
    if overrides.bar and overrides.bar[WHY] == task then
      overrides.bar = nil
      save_overrides(need.bucket, overrides)
      touch(need.bucket)
    end
  end
end
