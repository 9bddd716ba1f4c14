-- The beginning of every script of the gate: the keys, the store's time, the state of this call.
--
-- KEYS[1]  limits     HASH  limit -> its last declaration (see permits.lua)
-- KEYS[2]  overrides  HASH  bucket -> its runtime overrides (see runtime_overrides.lua)
-- KEYS[3]  used       HASH  bucket -> permits held now; no field for 0
-- KEYS[4]  waiting    HASH  bucket -> number of parked tasks that need its permits; no field for 0
-- KEYS[5]  leases     ZSET  task id -> when the lease of its holder ends (ms)
-- KEYS[6]  records    HASH  task id -> record (see records.lua)
-- KEYS[7]  messages   HASH  task id -> the message (see store/parcel.py), kept while only the store has it
-- KEYS[8]  lines      ZSET  all scores 0; the parked tasks of each lane in order (see places.lua)
-- KEYS[9]  lanes      HASH  lane -> where it is listed (see lanes.lua)
-- KEYS[10] heads      ZSET  all scores 0; bucket \0 rank \0 lane: the lanes that wait for a bucket, in order;
--                           at an open bucket (sites.lua) all ready lanes that need it
-- KEYS[11] ready      ZSET  all scores 0; section \0 ticket lane: lanes whose first task could start now. A
--                           section is a queue, and \29\29 and the open buckets if there are any: then its
--                           members are section \0 place ticket lane
-- KEYS[12] due        ZSET  work that time alone brings about -> when (ms):
--                           'bucket:' and a bucket: look at the bucket again
--                           'lane:' and a lane that was passed over: its turn comes again
--                           'moment:' and 'passed:', see site_turns.lua
--                           'task:' and a task: when its wait ends, or its pause before it begins again
--                           'lock:' and the name of lanes that wait for a lock: go on with their tasks
--                           'concluded:' or 'lost:', an identity, ':' and a task: the same, with its outcome
--                           'limit:' and a bucket of a limit: look at the buckets of the limit after it
-- KEYS[13] locks      HASH  identity -> identity lock (see locks.lua)
-- KEYS[14] rates      HASH  bucket -> the end of the bookings of its rates (see rates.lua)
-- KEYS[15] turns      HASH  bucket, or bucket \30 key -> how far the turns are (see fair_queueing.lua)
-- KEYS[16] aside      HASH  task id, or name of a key \0 field -> a value that cannot be read (see aside.lua)
-- KEYS[17] workers    HASH  worker id -> its last numbered call and the answer (see workers.lua)
-- KEYS[18] meta       HASH  'birth': when this data began (us)
--                           'settling': until when nothing is granted (ms)
--                           'ticket': the last ticket
--                           'begins': how often a task may begin, by the last declaration
--                           'stamp': the last fencing token or claim
--                           'moment': the end of the time to renew after an outage (ms)
--                           'errors': how often workers lost this store, or had a call refused
--                           'broker:' and a code: the description of a broker that has workers here
--                           'declared:' and the name of a worker: all its declarations, JSON
--                           'lost:' and the name of a worker: see lost_runs.lua
--                           'size:worker=' and the name of a worker: of its pool, if a limit is a share of it
-- KEYS[19] ends       ZSET  a hash ('locks', 'records', 'rates', 'turns', 'overrides', 'aside', 'workers',
--                           'meta'), ':' and a field of it -> when the field ends (ms); of a record only its
--                           parts finished and awaited end
-- KEYS[20] audit      ZSET  a change made by people at run time -> number of the change (see audit.lua)
-- KEYS[21] oldest     ZSET  all scores 0; limit \0 ticket lane: the lanes that wait for each limit, all keys
--                           together, by the arrival of their first tasks
-- KEYS[22] sums       HASH  the sums over all keys of a limit (see sums.lua)
-- KEYS[23] wake       channel of the hints:
--                     'ready' and a queue: its workers can start a task
--                     'line' and a bucket: it has a line now, or a new override
--                     'site' and a site, or a kind of sites: it has room again
--                     'due' and a number: look after so long (ms), because a script that answers no
--                     worker has added work that is due then
--                     'birth' and when this data began: holders of permits renew them now
-- ARGV[1]  lease_ms; then the name of the script, unless it is exchange; then its own arguments.
local LIMITS, OVERRIDES, USED, WAITING, LEASES, RECORDS = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local MESSAGES, LINES, LANES, HEADS, READY, DUE = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local LOCKS, RATES, TURNS, ASIDE, WORKERS, META = KEYS[13], KEYS[14], KEYS[15], KEYS[16], KEYS[17], KEYS[18]
local ENDS, AUDIT, OLDEST, SUMS, WAKE = KEYS[19], KEYS[20], KEYS[21], KEYS[22], KEYS[23]
-- Further keys of a script come after these.
local LAST_KEY = 23
-- The version of the layout of records; a record of another version is set aside.
local VERSION = 2

local clock = redis.call('TIME')
local NOW = clock[1] * 1000 + math.floor(clock[2] / 1000)
local NOW_US = clock[1] * 1000000 + clock[2]
local LEASE_MS = tonumber(ARGV[1])

-- The fields of `state`, all about this call:
-- worker, call: the id of the worker that makes this numbered call, and the number
-- holder: the whole name of the worker
-- call_before: the number of the call before; the own number once the rows of this call about messages are in
-- away_ms: for how long the worker could not reach the store
-- clock_off, clock_ms, newest: see workers.lua
-- queues, serves: the queues of the worker, as a list and as a set
-- slots: how many more parked tasks the worker takes
-- sites: for each kind of sites of the worker, \29 kind -> \29 kind=site; nil if its app has none
-- grants: ids of the parked tasks granted to the worker
-- withdrawn: the tasks that were taken out of their lines
-- reclaimed: a row for each holder whose lease had ended
-- named: buckets that the reply names
-- confirms: see workers.lua
-- rules: the rule of each bucket, see permits.lua
-- touched: buckets to look at
-- looks: how many more buckets and lanes this call looks at (see ready.lua)
-- moves: how many more tasks this call moves on that waited for a lock, or are due
-- due: when the first work is due that this call has added to KEYS due (ms)
-- ready: lanes that became ready
-- was_ready: buckets and queues that had a ready lane before
-- hot: lanes that are ready for the caller alone, with the ticket of the first task
-- began: buckets that had no line before
-- records: records of tasks, as read or changed
-- changed: tasks whose records are to be written
-- packed: records as text
-- locks: identity locks as read or changed; false: there is none
-- lanes, firsts, heads, oldest: lanes, their first tasks, the first lane of each bucket, the first ready lane
--   of each queue, as read
-- needs: needs by their text
-- shapes: see shapes.lua
-- unsettled: see unsettled.lua
-- The other fields are set on first use:
-- stocked: queues of the worker in which a lane may be ready, as a list and as a set
-- sections: the sections of KEYS ready in the queues of the worker, as read
-- refused: buckets of sites that an older task needs more of
-- waits: buckets of sites, and when they may have room (ms)
-- freed: buckets of sites that may have room again
-- overridden: whether there are runtime overrides
-- settling, settled: how long nothing is granted yet (ms), and whether that time is over
-- away: whether the store was away
-- prolonged: leases were prolonged after an outage
-- parked: whether any task is parked
-- first_lease: when the first lease ends
-- mute: hints are refused
-- only_reads: this script writes nothing
-- adds_ends: this call added a field to KEYS ends
-- counted: permits held by bucket, counted from the records
-- recounted: USED was counted again
-- wrong: the findings of mend.lua
local state = {
  worker = '', holder = '', call = 0, call_before = 0, away_ms = 0, queues = {}, serves = {},
  slots = 0, grants = {}, rules = {}, touched = {}, ready = {}, was_ready = {}, began = {},
  withdrawn = {}, reclaimed = {}, named = {}, hot = {}, records = {}, changed = {}, packed = {},
  confirms = {}, lanes = {}, firsts = {}, heads = {}, needs = {}, oldest = {}, shapes = {}, looks = 20,
  moves = 60, locks = {}, unsettled = {},
}

local next_argument = 1
local function argument()
  next_argument = next_argument + 1
  return ARGV[next_argument]
end

local function number()
  return tonumber(argument())
end

-- Return an optional JSON argument; nil for ''.
local function object()
  local packed = argument()
  return packed ~= '' and cjson.decode(packed) or nil
end
