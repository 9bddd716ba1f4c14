-- Check a key for values that are unreadable or disagree with the records, a page at a time; and repair them.
-- KEYS, ARGV[1] as in shared/begin.lua; then name of the key as there, where to go on ('' at first), 1:
-- repair, 0: only report.
-- Returns { where to go on ('' after the last page), { { key, field, why }, ... } }; a field may come twice.
redis.call('ZREM', LEASES, '')
local name, from, mends = argument(), argument(), argument() == '1'
state.only_reads, state.wrong = not mends, {}

local hashes = {
  records = RECORDS, locks = LOCKS, workers = WORKERS, limits = LIMITS, overrides = OVERRIDES,
  used = USED, waiting = WAITING, rates = RATES, turns = TURNS, lanes = LANES,
  meta = META, aside = ASIDE, sums = SUMS,
}

local function look_at_aside(field, packed)
  if readable(packed, 'aside') then return end
  note_wrong('aside', field, 'not readable')
  if mends then forget_aside(field) end
end

local function look_at_number(field, packed)
  local lost_of = string.match(field, '^lost:(.*)$')
  if lost_of then lost_runs_of(lost_of) end
  local is_text = lost_of or string.match(field, '^broker:') or string.match(field, '^declared:')
  if not is_text and not is_digits(packed) then note_unreadable(META, 'meta', field, packed) end
end

local function look(field, packed)
  if name == 'records' then check_record(field)
  elseif name == 'locks' then kept_lock(field)
  elseif name == 'workers' then load_worker(field)
  elseif name == 'limits' then declared_of(field)
  elseif name == 'overrides' then load_overrides(field)
  elseif name == 'used' then held_of(field)
  elseif name == 'waiting' then counted_in(WAITING, name, field)
  elseif name == 'sums' then counted_in(SUMS, name, field)
  elseif name == 'rates' then load_booked(field)
  elseif name == 'turns' then kept_turn(field)
  elseif name == 'lanes' then load_lane(field)
  elseif name == 'meta' then look_at_number(field, packed)
  elseif name == 'aside' then look_at_aside(field, packed)
  end
end

local function look_at_change(member)
  if readable(member, 'change') then return end
  note_wrong(name, member, 'not readable')
  if mends then redis.call('ZREM', AUDIT, member) end
end

-- First, since the tasks of a lane are read by their order.
if name == 'lines' and (mends or from == '') then check_order() end
local hash, page = hashes[name], nil
from = from == '' and '0' or from
if hash then
  page = redis.call('HSCAN', hash, from, 'COUNT', 100)
else
  local key = name == 'lines' and LINES or name == 'oldest' and OLDEST or AUDIT
  page = redis.call('ZSCAN', key, from, 'COUNT', 100)
end
local after, found = unpack(page)
for i = 1, #found, 2 do
  if hash then look(found[i], found[i + 1])
  elseif name == 'lines' then check_member(found[i])
  elseif name == 'oldest' then check_oldest(found[i])
  else look_at_change(found[i])
  end
end
local is_last = after == '0'
if is_last and name == 'used' then check_counts(USED, name, holders_counted(COUNTED_MOST)) end
if is_last and name == 'waiting' then check_counts(WAITING, name, waiting_counted()) end
if is_last and name == 'sums' then check_counts(SUMS, name, sums_counted()) end
if mends then serve() end
return { is_last and '' or after, state.wrong }
