-- Those who wait outside of tasks say that they still do, and get what is their turn.
-- KEYS, ARGV[1..4] as in common.lua (one queue: theirs); then n, n holders.
-- Returns { known, grants, wait_ms, more, emptied }: known has 1 for each that waits or holds, 0 for one that the store knows
-- nothing of; the rest as in exchange.lua.
redis.call('ZREM', LEASES, '')
open_rules()
open_lines()
reap(8)
local known, lines = {}, {}
for i = 1, tonumber(argument()) do
  local holder = argument()
  local record = load_record(holder)
  known[i] = record and 1 or 0
  if record and record[STATE] == 'P' and record[MORE] then
    record[MORE].d = NOW + LEASE_MS
    save_record(holder, record)
    redis.call('ZADD', LEASES, record[MORE].d, holder)
    lines[#lines + 1] = line_of(record)
  elseif record and record[STATE] == 'H' then
    -- The reply that said so was lost.
    grants[#grants + 1] = grant_of(holder, record)
  end
end
if #lines > 0 then until_next_lease_ends() end
for _, line in ipairs(lines) do promote(line) end
for _, line in ipairs(joined) do promote(line) end
return { known, grants, wait_ms, more, emptied }
