-- What every script of the gate begins with: the keys, the store's time, what this call has gathered.
--
-- KEYS[1]  limits     HASH  limit -> what was declared of it last (see permits.lua)
-- KEYS[2]  said       HASH  bucket -> what was said of it at run time (see runtime_overrides.lua)
-- KEYS[3]  used       HASH  bucket -> permits held now; no field when none is
-- KEYS[4]  waiting    HASH  bucket -> how many parked tasks need permits of it; no field when none does
-- KEYS[5]  leases     ZSET  task id -> when the lease of its holder ends (ms)
-- KEYS[6]  records    HASH  task id -> record (see records.lua)
-- KEYS[7]  messages   HASH  task id -> the message (see store/parcel.py), kept while only the store has it
-- KEYS[8]  lines      ZSET  all scores 0; the parked tasks of each lane in order (see places.lua)
-- KEYS[9]  lanes      HASH  lane -> where it is listed (see lanes.lua)
-- KEYS[10] heads      ZSET  all scores 0; bucket \0 rank \0 lane: the lanes that wait for a bucket, in order
-- KEYS[11] ready      ZSET  all scores 0; queue \0 ticket lane: lanes whose first task could start now
-- KEYS[12] due        ZSET  what time alone brings about -> when (ms): 'bucket:' and a bucket to be looked at
--                           again, 'lane:' and one that was passed over and is in turn again, 'task:' and one
--                           that may not wait any longer, 'lock:' and a lane of those who wait for one,
--                           'limit:' and the bucket of a limit after which the others are to be looked at
-- KEYS[13] locks      HASH  identity -> identity lock (see locks.lua)
-- KEYS[14] rates      HASH  bucket -> until when its rates are booked (see rates.lua)
-- KEYS[15] turns      HASH  bucket, or bucket \30 who -> how far the turns are (see fair_queueing.lua)
-- KEYS[16] aside      HASH  task id, or name of a key \0 field -> what could not be read (see aside.lua)
-- KEYS[17] workers    HASH  worker id -> its last numbered call, and what came of it (see workers.lua)
-- KEYS[18] meta       HASH  'birth': when this data began (us); 'settling': until when nothing is granted
--                           (ms); 'ticket': the last one given; 'stamp': the last fencing token or claim;
--                           'moment': until when holders had time to renew after an outage (ms); 'errors':
--                           how often workers lost this store, or had a call refused;
--                           'broker:' and a code: the description of a broker that has workers here;
--                           'declared:' and the name of a worker: all that it declares, JSON;
--                           'lost:' and the name of a worker: see lost_runs.lua
-- KEYS[19] ends       ZSET  a hash ('locks', 'records', 'rates', 'turns', 'said', 'aside', 'workers',
--                           'meta'), ':' and a field of it -> when the field goes (ms); of a record finished
--                           and awaited
-- KEYS[20] audit      ZSET  what people changed at run time -> number of the change (see audit.lua)
-- KEYS[21] oldest     ZSET  all scores 0; limit \0 ticket lane: the lanes that wait for each limit, all keys
--                           together, in order of when their first tasks came
-- KEYS[22] sums       HASH  what all keys of a limit have together (see sums.lua)
-- KEYS[23] wake       channel of the hints: 'ready' and a queue, whose workers can start something; 'line'
--                     and a bucket that has a line now, or of which something was said; 'birth' and when the
--                     data of this store began: who holds something says so
-- ARGV[1]  lease_ms; then the name of the script, unless it is exchange; each goes on from there.
local LIMITS, SAID, USED, WAITING, LEASES, RECORDS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local MESSAGES, LINES, LANES, HEADS, READY, DUE = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local LOCKS, RATES, TURNS, ASIDE, WORKERS, META = KEYS[13], KEYS[14], KEYS[15], KEYS[16], KEYS[17], KEYS[18]
local ENDS, AUDIT, OLDEST, SUMS, WAKE = KEYS[19], KEYS[20], KEYS[21], KEYS[22], KEYS[23]
-- What a script has beside these comes after them.
local LAST_KEY = 23
-- Of the layout of records; one of another release is set aside.
local VERSION = 2

local clock = redis.call('TIME')
local NOW = clock[1] * 1000 + math.floor(clock[2] / 1000)
local NOW_US = clock[1] * 1000000 + clock[2]
local LEASE_MS = tonumber(ARGV[1])

-- worker, call: whose numbered call this is; holder: its whole name; call_before: the one before it, or this
-- one once it was heard that what was parked then is acknowledged;
-- away_ms: for how long it could not reach the store;
-- clock_off: see workers.lua; queues, serves: which queues it serves; slots: how many more parked tasks it
-- takes; grants: ids of those it got; rules: what is known of each bucket; touched: buckets to be looked
-- at; ready: lanes that became ready here; was_ready: buckets and queues that had one before; began:
-- buckets that had no line before; later: queues of which something can start after a time; withdrawn:
-- what was taken out of its line; reclaimed: rows of holders whose lease had ended; named:
-- buckets that the caller hears of; hot: lanes that are ready for the caller itself, and the ticket of the
-- first; records: of tasks, as they were read or changed; changed: tasks whose records are to be written;
-- packed: records as text; confirms: see workers.lua; lanes, firsts, heads, oldest: what was read of lanes,
-- their first tasks, the first lanes of buckets and the first that are ready for a queue; needs: what was
-- read of texts; looks: how many more buckets and lanes this call looks at (see ready.lua). What is found out
-- when it matters: said, settling, settled, away, parked, all_served, first_lease, mute, reaping; clock_ms,
-- newest: see workers.lua; shapes: see shapes.lua; recounted: whether USED was; only_reads: this script
-- writes nothing; wrong: what mend.lua has found; locks: identity locks as they were read, false: none;
-- unsettled: see unsettled.lua; adds_ends: something was added that time ends; prolonged: leases were given a
-- moment; counted: permits held by bucket, as the records say.
local state = {
  worker = '', holder = '', call = 0, call_before = 0, away_ms = 0, queues = {}, serves = {},
  slots = 0, grants = {}, rules = {}, touched = {}, ready = {}, was_ready = {}, began = {}, later = {},
  withdrawn = {}, reclaimed = {}, named = {}, hot = {}, records = {}, changed = {}, packed = {},
  confirms = {}, lanes = {}, firsts = {}, heads = {}, needs = {}, oldest = {}, shapes = {}, looks = 20,
  locks = {}, unsettled = {},
}

local next_argument = 1
local function argument()
  next_argument = next_argument + 1
  return ARGV[next_argument]
end

local function number()
  return tonumber(argument())
end

-- An optional JSON argument; nil for ''.
local function object()
  local packed = argument()
  return packed ~= '' and cjson.decode(packed) or nil
end
