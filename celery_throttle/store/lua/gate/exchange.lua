-- All that a worker has to say at once, and the slots it has for parked tasks. Calls are numbered; one
-- that was carried out before is only answered again.
-- KEYS, ARGV[1] as in shared/begin.lua; ARGV[2] an object (JSON) of worker: its name, number: of the call,
-- slots, queues: those that it serves, birth: when the data began that it knows, clock_ms: when it was put
-- together, on a clock of the worker's, and arrays of objects, or of arrays. All but the first four may be
-- left out:
--   ended    task, nonce, message, result, began: see shared/facts.lua; attempt, unless it is 0
--   passed   as ended (message: nobody), and to (as asked): a permit that passed to another task in the
--            same worker; carried out before what ended
--   began    { task id, nonce }: an early-ack task began, so its message is not needed any more
--   unacked  { task id, attempt, nonce } of those that the store has, or that have run, that could not be
--            acknowledged at the broker
--   acked    the same of those parked as unacked that are acknowledged now
--   revoked  task ids: out of their lines
--   never    { identity, task id, first }: the task will never run, so its lock is free; first: the task
--            that it was a duplicate of when it was published, '' if none
--   unread   { task id, why }: the worker was given it, and cannot read its record
--   asked    task, nonce, needs, queue, attempt, lock (see shared/claims.lua), code (see
--            shared/records.lua): wants to start
--   parked   the same, with age_ms: how long ago it came, wait_ms: how long it may wait,
--            turn: see shared/fair_queueing.lua, outside: a holder outside of tasks
--   unacked: true in a row: if it is parked, the broker keeps its message until acked says otherwise
--   errors   how often the worker lost the store, or was refused a call, since it said so last
--   back     as asked, with pause_ms and about: was told to slow down, so these buckets (as needs) start
--            nothing for so long
-- ARGV[3..] the messages of those parked, then of those that go back.
-- Returns { number, asked, parked, grants, wait_ms, more, closed, open, withdrawn, hints, reclaimed }:
--   asked      0 must be parked, 1 granted, 2 is parked or waits already, 3 has run before, else granted,
--              with this fencing token
--   parked     1 parked, 0 not, since as many wait as may, 3 has run before
--   grants     parked tasks that start here: { task id, record, message }
--   wait_ms    look again after that (0: no need); more: 1 if something could start in more slots
--   closed     of the buckets named here those with a line or without room; open: the others
--   withdrawn  { task id, message } of those that left their line; hints: 0 if they may not be published
--   reclaimed  rows of the holders whose lease had ended, and which this call has cleared
-- or, if nothing was done: { 'declare' } since the store was emptied, { 'overtaken', number } by that call.
local said = object()
state.holder, state.worker, state.call = said.worker, id_of(said.worker), said.number
state.slots, state.queues = said.slots, said.queues
for _, queue in ipairs(said.queues) do state.serves[queue] = true end

if not is_known(said.birth) then return { 'declare' } end
local before = load_worker(state.worker)
state.call_before, state.confirms = before.number, before.confirms or {}
if is_answer_to(before, said) then return answer_again(before, said.asked or {}) end
-- Of a connection that is gone; it was sent again on the next one, and this time nobody hears the answer.
if before.number > state.call then return { 'overtaken', string.format('%.0f', math.ceil(before.number)) } end
if said.clock_ms then hear_clock(before, said.clock_ms) end
-- The first write decides whether a full store refuses the call: what needs memory is refused whole, what
-- gives back never.
if said.parked or said.back then
  redis.call('HSETNX', META, 'ticket', 0)
else
  redis.call('ZREM', LEASES, '')
end
hear_ends(said.passed or {}, said.ended or {})
hear_notes(said)
if said.errors then
  redis.call('HSET', META, 'errors', string.format('%.0f', meta_number('errors', STAMPS_END) + said.errors))
end
reap_all(8)
if not before.till then reap_ends(4) end -- whoever adds one clears some, also where nobody waits
local asked = answer_asked(said.asked or {})
local parked = answer_parked(said.parked or {})
hear_back(said.back or {})
for bucket in pairs(state.named) do touch(bucket) end
serve()
save_worker(state.worker, {
  number = state.call, asked = next(asked) and asked, parked = next(parked) and parked,
  granted = next(state.grants) and state.grants, withdrawn = next(state.withdrawn) and state.withdrawn,
  confirms = next(state.confirms) and state.confirms,
}, before)
return say(asked, parked)
