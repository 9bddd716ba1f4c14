-- List the identity locks that are held, a page at a time, in no order.
-- KEYS, ARGV[1] as in shared/begin.lua; then where to go on ('' at first).
-- Returns { where to go on ('' after the last page), { { identity, lock as in shared/locks.lua, ms left, head
-- of the message of its task }, ... } }; a lock may come twice. Writes nothing.
state.only_reads = true
local after, rows = argument(), {}
local page = redis.call('HSCAN', LOCKS, after == '' and '0' or after, 'COUNT', 100)
for i = 1, #page[2], 2 do
  local identity, packed = page[2][i], page[2][i + 1]
  local lock = readable(packed, 'lock')
  if lock and lock.state ~= 'started' then
    local lease_ends = lock.state == 'running' and redis.call('ZSCORE', LEASES, lock.task)
    local left = till_of(lease_ends or lock_till(identity)) - NOW
    forget_late_next(identity, lock)
    if left > 0 then rows[#rows + 1] = { identity, cjson.encode(lock), left, head_of(lock.task) } end
  end
end
return { page[1] == '0' and '' or page[1], rows }
