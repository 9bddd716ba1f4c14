-- Take all reports and requests of a worker at once, and give its free slots to parked tasks. Calls are
-- numbered; a repeated call only gets its answer again.
-- KEYS, ARGV[1] as in shared/begin.lua; ARGV[2] an object (JSON), of which all but the first four parts may
-- be left out:
--   worker    its name
--   number    of the call
--   slots     how many parked tasks the worker takes
--   queues    that the worker serves, in the order of their bytes
--   birth     of the data that the worker has declared its limits to
--   clock_ms  when the call was built, by the clock of the worker
--   sites     for each kind of sites that the worker has, \29 kind -> \29 kind=site, see shared/sites.lua
--   size      of its pool, if a limit of its app is a share of it
--   read      the last call whose answer the worker has read, if that is not the call before
--   errors    how often the worker lost the store, or was refused a call, since its last report
--   arrived   tasks in the order of their arrival, an object each of task, nonce, needs, queue, attempt, and
--             where they apply:
--             lock      see shared/claims.lua
--             code, publication   see shared/records.lua
--             unacked   true, if the broker keeps the message until a row `acked`
--             message   1, if the task is to be parked; else the task asks to start
--             age_ms    of a task to park, or that goes back: how long ago it came
--             wait_ms, expires_ms   the same: how long after that it may wait for its permits, and until its
--                       message expires
--             turn      the same, see shared/fair_queueing.lua
--             outside   the same: a holder outside of tasks
--             pause_ms, about   the task has begun and goes back; an outside service may have asked to slow
--                       down: no task starts on these buckets (as needs) for so long
--   changed   { event, task, attempt, nonce, publication, ... }: what became of deliveries, in the order in
--             which it happened (publication '': unknown):
--             began     an early-ack task began, so its message is not needed any more
--             unacked   the store has the message, or the task has run, but the broker did not take the
--                       acknowledgement
--             acked     the delivery arrived as unacked, and is acknowledged now
--             ended     and message, result, began: see shared/facts.lua; and true, if the broker's message
--                       is acknowledged later: a row `acked` follows
--             passed    and message, result, began, and the task in the same worker that has the permit
--                       now, as in arrived
--   gone      { why, task, ... }: tasks that will not run:
--             revoked   take the task out of its line
--             never     and identity, first: the lock of the task is free; first: the task that it was a
--                       duplicate of when it was published, '' if none
--             unread    and the error: the worker was granted the task, and cannot read its record
-- ARGV[3..] the messages of the arrived rows that have one.
-- Returns { number, answers, grants, wait_ms, more, closed, open, withdrawn, hints, reclaimed }:
--   answers    to the arrived rows: 0 must be parked; 1 granted; 2 is parked; 3 has run before; 4 not parked,
--              because its line is full; 5 went back; 6 is a copy of a message in line; 7 not parked, because
--              another publication of the task id goes first; else granted, with this fencing token
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
state.sites = report.sites

if not is_known(report.birth) then return { 'declare' } end
local before = load_worker(state.worker)
state.call_before, state.confirms = before.number, before.confirms or {}
local arrived = report.arrived or {}
if before.number == state.call and has_answers(before, #arrived) then return answer_again(before, arrived) end
-- This is a copy of an older call, from a dead connection. The worker has repeated that call since, and does
-- not read this answer.
if before.number > state.call then return { 'overtaken', string.format('%.0f', math.ceil(before.number)) } end
if report.clock_ms then keep_clock(before, report.clock_ms) end
-- The first write decides whether a full store refuses the call. A call that needs memory is refused whole; a
-- call that only gives back never is.
if #ARGV > 2 then
  redis.call('HSETNX', META, 'ticket', 0)
else
  redis.call('ZREM', LEASES, '')
end
if before.number > (report.read or state.call) then repeat_unread(before) end
if report.size then keep_size(site_of(report.sites['\29worker']), report.size) end
apply_changes(report.changed or {})
confirm_copies(state.worker)
state.call_before = state.call
if report.gone then apply_gone(report.gone) end
if report.errors then
  redis.call('HSET', META, 'errors', string.format('%.0f', meta_number('errors', STAMPS_END) + report.errors))
end
reap_all(8)
if not before.till then reap_ends(4) end -- a call that adds a field also clears some, even if no task waits
local answers = answer_rows(arrived)
for bucket in pairs(state.named) do touch(bucket) end
serve()
save_worker(state.worker, {
  number = state.call, answers = next(answers) and answers,
  granted = next(state.grants) and state.grants, withdrawn = next(state.withdrawn) and state.withdrawn,
  confirms = next(state.confirms) and state.confirms,
}, before)
return reply_with(answers)
