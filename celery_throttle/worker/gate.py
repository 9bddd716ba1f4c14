"""The gate: where a task gets its permits and a slot of the pool, or is parked.

Every request of the worker passes here, throttled or not, because a permit may only go to a task that starts now:
the gate has to know which slots of the pool are free. A plain task just takes its slot. Everything happens on one
loop; nothing here waits.
"""

from __future__ import annotations

import logging
from collections import deque
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.core.history import Place
from celery_throttle.store.parcel import pack
from celery_throttle.worker.blocked import Blocked
from celery_throttle.worker.celery_side.acknowledging import Acknowledging
from celery_throttle.worker.celery_side.failing import fail
from celery_throttle.worker.celery_side.prefetch import Prefetch
from celery_throttle.worker.celery_side.requirements import expiring
from celery_throttle.worker.celery_side.revocation import Withdrawing
from celery_throttle.worker.held_back.avoided import Avoided
from celery_throttle.worker.held_back.later import Later
from celery_throttle.worker.held_back.outage import Outage
from celery_throttle.worker.held_back.undecided import Undecided
from celery_throttle.worker.reported.notices import Notices
from celery_throttle.worker.reported.signals_and_events import tell_parked
from celery_throttle.worker.resuming import Resuming
from celery_throttle.worker.running import Running
from celery_throttle.worker.runs import Here, Permit, Run, State
from celery_throttle.worker.store_side.slot_offers import Offers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from celery_throttle.core.settings import Settings
    from celery_throttle.store.exchange_reply import Grant, Reply, Withdrawn
    from celery_throttle.worker.celery_side.queues import Queues
    from celery_throttle.worker.celery_side.requests import RequestFactory
    from celery_throttle.worker.celery_side.slots import Slots
    from celery_throttle.worker.celery_side.tasks import Tasks
    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.store_side.calls import Calls
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["Gate"]

logger = logging.getLogger(__name__)

#: Seconds between two looks of a worker on its own, when no hint comes.
LOOK_EVERY = 5.0
#: Seconds after which the broker may have given a message to another worker too (its visibility timeout), so that it
#: does not start before the store has heard of it.
_FRESH = 5.0
#: Buckets that are known to be closed; to forget them only means to ask the store again.
_CLOSED_MOST = 10_000


class Gate:
    """Admits, parks and resumes the requests of one worker.

    Args:
        slots: of Celery's pool.
        tasks: what each request needs.
        settings: of the app.
        loop: everything happens on it.
        timekeeper: for everything that has to happen later.
        groups: the names of the groups of limits.
        make_calls: makes the calls of a group, given who hears of what they bring.
        grow: called when a parked task could start here, if there were a slot more.
    """

    def __init__(
        self,
        slots: Slots,
        tasks: Tasks,
        settings: Settings,
        loop: Loop,
        timekeeper: Timekeeper,
        groups: Iterable[str],
        make_calls: Callable[[str, Gate], Calls],
        grow: Callable[[], None],
    ) -> None:
        self._slots, self._tasks, self._loop, self._timekeeper = slots, tasks, loop, timekeeper
        self._groups = {name: make_calls(name, self) for name in groups}
        #: The calls of each group.
        self.groups = tuple(self._groups.values())
        self._prefetch = Prefetch()
        self._outages = {
            name: Outage(settings.on_store_error, self._run_unthrottled, self._fail, self._prefetch.change)
            for name in self._groups
        }
        self._waiting: deque[Run] = deque()  # WAITING
        self._granted: deque[Run] = deque()  # GRANTED
        self._undecided = Undecided()  # ASKING, UNSURE, PARKING
        self._notices = Notices(loop, timekeeper)
        #: Hears when leases are renewed.
        self.blocked = Blocked(slots.name if slots.in_main_process else "", settings.lease)
        self._running = Running(slots, tasks, loop, self._groups, self._notices, self._fail_over, self.blocked)
        self._acknowledging = Acknowledging(self._running, loop, self._groups)
        self._avoided = Avoided(loop, timekeeper, self._serve_queues)
        self._resuming = Resuming(self._running, loop, timekeeper, self._notices, self._avoided)
        self._withdrawing = Withdrawing(loop, timekeeper)
        self._later = Later(loop, timekeeper, self._prefetch.change, self._notices)
        self._offers = Offers(loop)
        self._grow = grow
        self._closing = False
        self._queues: Queues | None = None
        self._requests: RequestFactory | None = None
        loop.every_turn(self.tick)

    # -- what Celery calls ---------------------------------------------------------------------------------------

    def arrive(self, request: Any) -> None:
        """Take a request that the consumer would give to the pool."""
        self._loop.call(self._arrive, request)

    def connected(self, consumer: Any, queues: Queues, requests: RequestFactory) -> None:
        """The worker consumes (again): from these queues."""
        self._queues, self._requests = queues, requests
        self._prefetch.begin(consumer)
        self._offers.connected()
        self._serve_queues()

    def _serve_queues(self) -> None:
        if self._queues is None:
            return
        for calls in self.groups:
            calls.queues = self._avoided.others(self._queues.names)
            calls.hungry = True

    def disconnected(self) -> None:
        """The broker connection is gone: it will deliver again what was not acknowledged, so drop all that."""
        self._running.begin_epoch()
        self._prefetch.end()
        self._queues = None
        self._acknowledging.disconnected()
        self._drop_undecided()
        self._running.discarded()

    def close(self) -> None:
        """Start nothing more; what runs goes on and gives its permits to others."""
        self._closing = True
        self._notices.close()
        self._drop_undecided()
        self._running.close()
        for calls in self.groups:
            calls.hurry()

    def flushed(self) -> None:
        """The pool is about to stop, and has thrown away what no process has begun."""
        self._running.discarded(stopping=True)

    def finish(self) -> None:
        """The pool has stopped: nothing of ours runs any more."""
        self._resuming.finish()
        self._running.finish(self._granted)
        self._granted.clear()
        for calls in self.groups:
            calls.outbox.unspare()
            calls.hurry()

    def keep_back(self) -> None:
        """End the runs that were told to slow down and that the store has not taken back."""
        for calls in self.groups:
            for run in calls.keep_back():
                self._running.not_sent_back(run)

    def never_runs(self, task: Any, context: Any) -> None:
        """A task was revoked or has expired: its lock is free."""
        plan = self._tasks.plan_of(context, task)
        if plan is not None:
            self._groups[self._tasks.group_of(task)].outbox.never(plan.identity, context.id, plan.first)

    def withdraw(self, tasks: list[str]) -> None:
        """Answer for revoked tasks that are parked, without waiting for their turn."""
        for calls in self.groups:
            calls.outbox.revoked(tasks)

    def tend_pool(self) -> None:
        """Notice lost children while there is a permit to get back from them."""
        if any(run.permit is not None for run in self._running.runs):
            self._slots.tend()

    def look_soon(self) -> None:
        """There may be something to start."""
        for calls in self.groups:
            calls.hungry = True

    def hint(self, text: str, calls: Calls) -> None:
        """Somebody says that a queue has something to start, or that a bucket has a line."""
        kind, _, name = text.partition(" ")
        if kind == "ready" and name in calls.queues:
            self._more_waits(calls)
        elif kind == "line":
            self._shut(name, calls)

    @property
    def here(self) -> Here:
        """All that is here, oldest first."""
        saving = [run for calls in self.groups if calls.saving is not None for run in calls.saving.held]
        # The call that they are in is sent again when the store is back.
        unsure = {run: None for run in self._undecided if not self._groups[run.group].link.up}
        held_back = {
            "store away": [*unsure, *(run for outage in self._outages.values() for run in outage.held)],
            "store refuses": [run for run in self._later.refused if run.asks],
            "result backend away": [run for run in self._later.refused if not run.asks],
            "max_parked": self._later.many,
            "not safe yet": saving,
        }
        return Here(
            running=_by_age(self._running.runs),
            waiting=tuple(self._waiting),
            asking=tuple(run for run in self._undecided if run not in unsure),
            held_back={why: _by_age(runs) for why, runs in held_back.items() if runs},
        )

    def _stops(self) -> bool:
        if not self._closing and self._slots.gone:
            self.close()
        return self._closing

    def _drop_undecided(self) -> None:
        dropped = [*self._waiting, *self._later.forget()]
        for calls in self.groups:
            dropped += calls.outbox.forget_arrivals()
        for outage in self._outages.values():
            dropped += outage.forget()
        for run in dropped:
            self._undecided.decide(run, State.GONE)
        # What is under way is answered by its facts when the reply is there.
        for run in self._undecided:
            self._undecided.decide(run, State.GONE)
        for run in self._granted:
            run.state = State.GONE
            self._running.give_back(run, Result.NOTHING, began=False)
        self._waiting.clear()
        self._granted.clear()

    # -- slots ---------------------------------------------------------------------------------------------------

    @property
    def free_slots(self) -> int:
        """How many more tasks could run."""
        taken = len(self._running.runs) + self._undecided.asking
        for calls in self.groups:
            taken += calls.offered
        return self._slots.size - taken

    def tick(self) -> None:
        """Hand out free slots, send what the store has to know, and let the pool go on."""
        try:
            if self._stops():
                self._send_rest()
            else:
                self._hand_out()
        finally:
            if not self._loop.threaded:
                self._slots.pass_on(self._loop.hub)

    def _send_rest(self) -> None:
        for calls in self.groups:
            if calls.free and not calls.idle:
                calls.send(0)

    def _hand_out(self) -> None:
        self._start_granted()
        offers = {calls: self._offer(calls) for calls in self.groups if calls.has_to_send}
        if not offers and not self._waiting:
            return
        reserved = sum(offers.values())
        while self._waiting and self.free_slots - reserved > 0:
            self._enter(self._waiting.popleft())
        for calls, slots in offers.items():
            reserved -= slots
            if not self._waiting and self._queues:
                slots = max(self.free_slots - reserved, 0)  # noqa: PLW2901 - nobody else wants them
            if self._offers.due(calls, slots):
                calls.send(slots)

    def _start_granted(self) -> None:
        self._tell_begun(list(islice(self._granted, max(self.free_slots, 0))))
        while self._granted and self.free_slots > 0:
            self._try(self._running.execute, self._granted.popleft())

    def _tell_begun(self, runs: list[Run]) -> None:
        """Send it before they begin: a body in this process may keep us from sending anything for longer than a lease.

        As with a message that the broker has, and which Celery acknowledges before the body begins.
        """
        begin = [run for run in runs if self._forgets_at_start(run)]
        for run in begin:
            self._running.tell_begun(run)
        for calls in {self._groups[run.group]: None for run in begin}:
            if calls.free:
                calls.send(max(self.free_slots - len(runs), 0) if calls.hungry and not self._waiting else 0)

    def _forgets_at_start(self, run: Run) -> bool:
        """Whether the store has the message of a task that is acknowledged early, and that runs in this process."""
        return run.stored and self._slots.in_main_process and not run.request.task.acks_late

    def _offer(self, calls: Calls) -> int:
        return self._offers.slots(calls, self.free_slots, others_wait=bool(self._waiting)) if self._queues else 0

    # -- arrivals ------------------------------------------------------------------------------------------------

    def _arrive(self, request: Any) -> None:
        if self._stops():
            return
        if self._queues is None:  # of a connection that is gone: its ETA has come meanwhile, and the broker has it
            self._running.forget(request)
            return
        try:
            run = self._tasks.run_of(request, self._running.epoch, self._queues)
        except Exception as error:  # noqa: BLE001 - the user's own function, too
            self._fail(Run(request, epoch=self._running.epoch), error, self._arrive_again)
            return
        self._line_up(run)

    def _arrive_again(self, runs: list[Run]) -> None:
        for run in runs:
            self._arrive(run.request)

    def _line_up(self, run: Run) -> None:
        # It takes no slot to be parked, and whoever waits here without a ticket would be overtaken.
        if self._has_to_wait(run) or (not self._waiting and self.free_slots > 0):
            self._enter(run)
        else:
            run.state = State.WAITING
            self._waiting.append(run)

    def _enter(self, run: Run) -> None:
        self._try(self._go_in, run)

    def _go_in(self, run: Run) -> None:
        if not run.guarded:
            self._running.execute(run)
        elif not run.request.revoked():
            self._admit(run)

    def _try(self, step: Callable[[Run], None], run: Run, again: Callable[[list[Run]], None] | None = None) -> None:
        """Take a step that may say something in the result backend: that the run is revoked, has expired, or failed.

        If the backend is away the run is held here for a while, and begins again.
        """
        try:
            step(run)
        except Exception as error:
            if self._stops():
                raise
            if not run.at_broker:
                logger.exception("celery_throttle: error in %r", step)
                return
            logger.error("Task %s[%s] waits here: %r", run.request.name, run.request.id, error)  # noqa: TRY400
            self._undecided.decide(run, State.LATER)
            self._later.put_off([run], again or self._wait_first)

    def _fail(self, run: Run, error: Exception, again: Callable[[list[Run]], None] | None = None) -> None:
        self._undecided.decide(run, State.GONE)
        self._try(lambda run: self._fail_now(run, error), run, again)

    def _fail_over(self, run: Run, error: Exception) -> None:
        """Say it of one that has run; the store hears by its facts, unless it has to be said later."""

        def later(runs: list[Run]) -> None:
            for each in runs:
                self._fail(each, error, later)

        self._try(lambda run: fail(run.request, error), run, later)

    def _fail_now(self, run: Run, error: Exception) -> None:
        fail(run.request, error)
        if run.lock:  # the store knows nothing of its end, and would keep its lock until its ttl
            self.never_runs(run.request.task, run.request._context)  # noqa: SLF001

    def _admit(self, run: Run) -> None:
        calls = self._groups[run.group]
        run.nonce = run.nonce or calls.nonce()
        run.keeps = calls.saving is not None
        if not calls.link.up or self._outages[run.group].holds:
            self._hold(run)  # behind those that came while the store was away, until it has heard what the limits are
        elif self._has_to_wait(run):
            self._park(run)
        elif self._is_plain(run) and (permit := calls.outbox.take(run)) is not None:
            self._running.hold_permit(run, permit)
            self._running.execute(run)
        else:
            self._undecided.ask(run)
            calls.outbox.asked.append(run)

    def _has_to_wait(self, run: Run) -> bool:
        closed = self._running.closed
        return bool(closed) and run.needs.waits_in(closed) and not run.asks

    def _is_plain(self, run: Run) -> bool:
        """Whether the permit of one like it will do: only a number limits it, and nobody else can have it."""
        if run.stored or run.redelivered or run.asks or not self._tasks.is_plain(run):
            return False
        # One with an ETA has been in this worker before it came here.
        return monotonic() - run.came < _FRESH and not run.request.request_dict.get("eta")

    def _park(self, run: Run) -> None:
        try:
            run.parcel = pack(run.request.message)
        except (TypeError, ValueError) as error:
            self._fail(run, error)  # nobody else could run it, so it must not wait for ever
            return
        if self._tasks.is_paced(run):
            # Found out only when its turn has come, it would have cost others a start.
            run.needs = expiring(run.needs, run.request)
        self._undecided.park(run)
        run.asks = False
        self._groups[run.group].outbox.parked.append(run)

    def _shut(self, bucket: str, calls: Calls) -> None:
        """There is no room, or a line: those who wait here for a slot get in line, and no permit is passed on."""
        if bucket in self._running.closed:
            return
        self._running.closed.add(bucket)
        calls.outbox.unspare()
        waiting, self._waiting = self._waiting, deque()
        for run in waiting:
            if run.needs.waits_in({bucket}) and not run.asks:
                self._enter(run)
            else:
                self._waiting.append(run)

    # -- what the store says -------------------------------------------------------------------------------------

    def granted(self, run: Run, fencing_token: int) -> None:
        """See `Decisions`."""
        calls, had_slot = self._groups[run.group], run.state is State.ASKING
        if run not in self._undecided:
            # Its broker connection was lost meanwhile, and the broker delivers it again; or it runs without a permit.
            facts = run.facts(Result.NOTHING, began=False, epoch=self._running.epoch)
            calls.outbox.ended(run.request.id, run.nonce, facts)
            return
        self._undecided.decide(run, State.GRANTED)
        if fencing_token:
            run.fence(fencing_token)
        self._running.hold_permit(run, Permit(run))
        if had_slot:
            self._try(self._running.execute, run)
        else:
            self._granted.append(run)

    def refused(self, run: Run) -> None:
        """See `Decisions`."""
        if run in self._undecided:
            self._park(run)

    def parked(self, run: Run) -> None:
        """See `Decisions`."""
        self._undecided.decide(run, State.GONE)
        run.parcel = b""
        self._acknowledging.parked(run)
        calls = self._groups[run.group]
        calls.tally.add(run.needs.text, Place.PARKED)
        self._notices.parked(run.request, calls)
        tell_parked(run)

    def has_run(self, run: Run) -> None:
        """See `Decisions`."""
        self._undecided.decide(run, State.GONE)
        run.parcel = b""
        self._acknowledging.has_run(run)

    def saved(self, run: Run) -> None:
        """See `Decisions`."""
        self._acknowledging.saved(run)

    def lost(self, run: Run) -> None:
        """See `Decisions`."""
        if self._stops():
            run.state = State.GONE
            return
        logger.warning("Task %s[%s] was parked, and the store has lost it: again", run.request.name, run.request.id)
        self._line_up(run)

    def keep(self, more: int) -> None:
        """See `Decisions`."""
        self._prefetch.change(more)

    def crowded(self, run: Run) -> None:
        """See `Decisions`."""
        if not run.refusals:
            self._groups[run.group].tally.add(run.needs.text, Place.REFUSED)
        if self._undecided.decide(run, State.LATER):
            self._later.crowded(run, self._line_up)

    def resumed(self, grant: Grant, calls: Calls) -> None:
        """See `Decisions`."""
        if self._closing or self._queues is None or self._requests is None:
            calls.outbox.ended(grant.task, grant.nonce, Facts(began=False, message=Message.PLACE))
            return
        run = self._resuming.run_of(grant, calls, self._requests)
        if run is None:
            return
        if self.free_slots > 0 and not self._forgets_at_start(run):
            self._try(self._running.execute, run)
        else:
            run.state = State.GRANTED
            self._granted.append(run)

    def sent_back(self, run: Run) -> None:
        """See `Decisions`."""
        self._running.forget_permit(run)
        run.parcel = b""
        self._acknowledging.parked(run)

    def withdrawn(self, each: Withdrawn) -> None:
        """See `Decisions`."""
        if self._requests is not None:
            self._withdrawing.say(each, self._requests)

    def answered(self, reply: Reply, calls: Calls) -> None:
        """See `Decisions`."""
        if not self._stops():
            self._start_granted()
        # Only now: those who were refused in this reply came before those who wait here for a slot.
        self._running.closed.difference_update(reply.open)
        for bucket in reply.closed:
            self._shut(bucket, calls)
        if len(self._running.closed) > _CLOSED_MOST:
            self._running.closed.clear()
        if reply.more:
            self._more_waits(calls)
        at = monotonic() + reply.wait
        if reply.wait and (calls.look_at is None or at < calls.look_at or calls.look_at < monotonic()):
            calls.look_at = at
            self._timekeeper.later(reply.wait, lambda: self._loop.post(self._look_now, at, calls))

    def _more_waits(self, calls: Calls) -> None:
        calls.hungry = True
        if self.free_slots <= 0 and not self._stops():
            self._grow()

    def _look_now(self, at: float, calls: Calls) -> None:
        if calls.look_at != at:
            return
        calls.look_at = None
        calls.hungry = True
        if self.free_slots <= 0 and calls.free:
            # Maybe nobody else knows: those who have a slot get a hint.
            calls.send(0)

    # -- when the store is out of reach --------------------------------------------------------------------------

    def store_lost(self, error: Exception, calls: Calls) -> None:
        """The connection broke: whoever waits for the store's word waits without a slot."""
        logger.warning("celery_throttle: lost the store, connecting again: %s", error)
        unsent = set(calls.outbox.forget_arrivals())
        for run in self._undecided.of(calls.group):
            if run in unsent:
                self._hold(run)
            else:
                self._undecided.doubt(run)  # its call is sent again, and answered then

    def _hold(self, run: Run) -> None:
        self._undecided.decide(run, State.LATER)
        self._outages[run.group].meet(run)

    def store_unreachable(self, error: Exception, calls: Calls) -> None:
        """See `Decisions`."""
        outage = self._outages[calls.group]
        outage.unreachable(error)
        if outage.waits:
            return
        for run in self._undecided.of(calls.group):
            # One whose parking is under way waits for the answer: the store may have it.
            if run.state is not State.PARKING:
                self._hold(run)

    def _run_unthrottled(self, run: Run) -> None:
        self._undecided.decide(run, State.RUNNING)
        self._try(self._running.execute, run)

    def store_up(self, calls: Calls) -> None:
        """The store answers (again)."""
        self._wait_first(self._outages[calls.group].over())
        calls.hungry = True

    def put_off(self, runs: list[Run], calls: Calls) -> None:
        """See `Decisions`."""
        again = [run for run in runs if self._undecided.decide(run, State.LATER)]
        for run in again:
            run.asks = True

        def try_again(here: list[Run]) -> None:
            calls.go_on()
            self._wait_first(here)

        self._later.put_off(again, try_again)

    def _wait_first(self, runs: list[Run]) -> None:
        for run in runs:
            run.state = State.WAITING
        self._waiting.extendleft(reversed(runs))


def _by_age(runs: Iterable[Run]) -> tuple[Run, ...]:
    return tuple(sorted(runs, key=lambda run: run.came))
