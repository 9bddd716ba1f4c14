-- Return the first task in the line of each bucket.
-- KEYS, ARGV[1] as in shared/begin.lua; then n, n buckets.
-- Returns { { task id, ticket as in shared/records.lua }, ... }, {} for an empty line. Writes nothing.
state.only_reads = true
local passed = {}
for _, each in ipairs(passed_lanes(256)) do
  local entry = load_lane(each.lane)
  local known = entry.at and passed[entry.at]
  if entry.at and (not known or entry.rank < known.rank) then
    passed[entry.at] = { lane = each.lane, rank = entry.rank }
  end
end

local rows = {}
for i = 1, number() do
  local bucket = argument()
  local lane, rank = first_at(bucket)
  local other = passed[bucket]
  if other and (not lane or other.rank < rank) then lane = other.lane end
  local first = lane and first_of(lane)
  rows[i] = first and { first.task, first.ticket } or {}
end
return rows
