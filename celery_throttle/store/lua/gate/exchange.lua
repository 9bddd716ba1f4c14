-- Take all reports and requests of a worker at once, and give its free slots to parked tasks. Calls are
-- numbered; a repeated call only gets its answer again.
-- KEYS, ARGV[1] as in shared/begin.lua; ARGV[2] an object (JSON), of which all but the first four parts may
-- be left out:
--   worker    its name
--   number    of the call
--   slots     how many parked tasks the worker takes
--   queues    that the worker serves
--   birth     of the data that the worker has declared its limits to
--   clock_ms  when the call was built, by the clock of the worker
-- and arrays of objects or of arrays:
--   ended    task, nonce, message, result, began: see shared/facts.lua; attempt, unless it is 0
--   passed   as ended (message: nobody), and to (as asked): the permit passed to another task in the same
--            worker; carried out before ended
--   began    { task id, nonce }: an early-ack task began, so its message is not needed any more
--   unacked  { task id, attempt, nonce }: the store has the message, or the task has run, but the broker did
--            not take the acknowledgement
--   acked    the same: parked as unacked, and acknowledged now
--   revoked  task ids: take them out of their lines
--   never    { identity, task id, first }: the task will never run, so its lock is free; first: the task that
--            it was a duplicate of when it was published, '' if none
--   unread   { task id, why }: the worker was granted the task, and cannot read its record
--   asked    task, nonce, needs, queue, attempt, lock (see shared/claims.lua), code (see shared/records.lua):
--            a task that asks to start
--   parked   the same, with age_ms: how long ago the task came; wait_ms: how long it may wait; turn: see
--            shared/fair_queueing.lua; outside: a holder outside of tasks
--            a row may have unacked: true, if the broker keeps the message until a row of acked
--   errors   how often the worker lost the store, or was refused a call, since its last report
--   back     as asked, with pause_ms and about: an outside service asked to slow down, so no task starts on
--            these buckets (as needs) for so long
-- ARGV[3..] the messages of the parked rows, then of the back rows.
-- Returns { number, asked, parked, grants, wait_ms, more, closed, open, withdrawn, hints, reclaimed }:
--   asked      0 must be parked; 1 granted; 2 is parked or waits already; 3 has run before; else granted,
--              with this fencing token
--   parked     1 parked; 0 not, because the line is full; 3 has run before
--   grants     parked tasks that start here: { task id, record, message }
--   wait_ms    look again after that time (0: no need)
--   more       1 if a task could start in a further slot
--   closed     the named buckets that have a line or no room
--   open       the other named buckets
--   withdrawn  { task id, message } of tasks that left their line
--   hints      0 if hints are refused
--   reclaimed  rows of the holders whose lease had ended, and which this call has cleared
-- or, if nothing was done: { 'declare' } because the store was emptied, { 'overtaken', number } by that call.
local report = object()
state.holder, state.worker, state.call = report.worker, id_of(report.worker), report.number
state.slots, state.queues = report.slots, report.queues
for _, queue in ipairs(report.queues) do state.serves[queue] = true end

if not is_known(report.birth) then return { 'declare' } end
local before = load_worker(state.worker)
state.call_before, state.confirms = before.number, before.confirms or {}
if is_answer_to(before, report) then return answer_again(before, report.asked or {}) end
-- This is a copy of an older call, from a dead connection. The worker has repeated that call since, and does
-- not read this answer.
if before.number > state.call then return { 'overtaken', string.format('%.0f', math.ceil(before.number)) } end
if report.clock_ms then keep_clock(before, report.clock_ms) end
-- The first write decides whether a full store refuses the call. A call that needs memory is refused whole; a
-- call that only gives back never is.
if report.parked or report.back then
  redis.call('HSETNX', META, 'ticket', 0)
else
  redis.call('ZREM', LEASES, '')
end
apply_ends(report.passed or {}, report.ended or {})
apply_reports(report)
if report.errors then
  redis.call('HSET', META, 'errors', string.format('%.0f', meta_number('errors', STAMPS_END) + report.errors))
end
reap_all(8)
if not before.till then reap_ends(4) end -- a call that adds a field also clears some, even if no task waits
local asked = admit_rows(report.asked or {})
local parked = park_rows(report.parked or {})
send_back_rows(report.back or {})
for bucket in pairs(state.named) do touch(bucket) end
serve()
save_worker(state.worker, {
  number = state.call, asked = next(asked) and asked, parked = next(parked) and parked,
  granted = next(state.grants) and state.grants, withdrawn = next(state.withdrawn) and state.withdrawn,
  confirms = next(state.confirms) and state.confirms,
}, before)
return reply_with(asked, parked)
