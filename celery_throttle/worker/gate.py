"""The gate: where a task gets its permits and a slot of the pool, or is parked.

Every request of the worker passes here, throttled or not, because a permit may only go to a task that starts now:
the gate has to know which slots of the pool are free. A plain task just takes its slot. Everything happens on one
loop; nothing here waits.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery.exceptions import TaskRevokedError
from celery.worker import state

from celery_throttle.core.dedup import with_fencing_token
from celery_throttle.core.facts import Facts, Message, Result
from celery_throttle.core.policy import costs_of, needs_again, needs_text
from celery_throttle.errors import ConfigurationError
from celery_throttle.worker.needs import expiring
from celery_throttle.worker.outage import Outage, fail
from celery_throttle.worker.parcel import pack
from celery_throttle.worker.requests import Declined
from celery_throttle.worker.runs import Permit, Run, State
from celery_throttle.worker.verdicts import say
from celery_throttle.worker.watch import watch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from celery_throttle.core.settings import Settings
    from celery_throttle.store.replies import Grant, Reply, Withdrawn
    from celery_throttle.tasks.rate_limited import RateLimited
    from celery_throttle.worker.calls import Calls
    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.queues import Queues
    from celery_throttle.worker.requests import RequestFactory
    from celery_throttle.worker.slots import Slots
    from celery_throttle.worker.tasks import Tasks
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["Gate"]

logger = logging.getLogger(__name__)

#: Seconds between two looks of a worker on its own, when no hint comes.
LOOK_EVERY = 5.0
#: Seconds for which the store need not hear that a permit went from one task to the next, here.
_LAZY = 0.025
#: Buckets that are known to be closed; to forget them only means to ask the store again.
_CLOSED_MOST = 10_000
#: Seconds until a call that the store refused (out of memory, read-only) is tried again.
_PUT_OFF = 1.0
#: The same for a task that may not be parked because too many are; twice as long each time.
_CROWDED, _CROWDED_MOST = 0.5, 30.0
#: Tasks held here because too many are parked; all others stay in the broker.
_HELD_MOST = 200


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
        self._outages = {
            name: Outage(settings.on_store_error, self._run_unthrottled, self._prefetch) for name in self._groups
        }
        self._waiting: deque[Run] = deque()  # WAITING
        self._granted: deque[Run] = deque()  # GRANTED
        self._undecided: dict[Run, None] = {}  # ASKING, UNSURE, PARKING
        self._asking = 0  # ASKING: each has a slot
        self._running: set[Run] = set()  # RUNNING
        self._later: set[Run] = set()  # LATER, but for those of an outage
        self._closed: set[str] = set()  # buckets without room, or with a line, as far as we know
        self._parked_first = False
        self._grow = grow
        self._closing = False
        self._epoch = 0  # of the broker connection
        self._queues: Queues | None = None
        self._requests: RequestFactory | None = None
        self._consumer: Any = None
        loop.every_turn(self.tick)

    @property
    def groups(self) -> tuple[Calls, ...]:
        """The calls of each group."""
        return tuple(self._groups.values())

    # -- what Celery calls ---------------------------------------------------------------------------------------

    def arrive(self, request: Any) -> None:
        """Take a request that the consumer would give to the pool."""
        self._loop.call(self._arrive, request)

    def connected(self, consumer: Any, queues: Queues, requests: RequestFactory) -> None:
        """The worker consumes (again): from these queues."""
        self._consumer, self._queues, self._requests = consumer, queues, requests
        for calls in self.groups:
            calls.queues = queues.names
            calls.hungry = True

    def disconnected(self) -> None:
        """The broker connection is gone: it will deliver again what was not acknowledged, so drop all that."""
        self._epoch += 1
        self._queues = self._requests = None
        self._drop_undecided()
        for run in [run for run in self._running if self._slots.discarded(run.request)]:
            self._running.discard(run)
            run.state = State.GONE
            if self._slots.was_sent(run.job):
                # A child may just have begun it, and will not tell. Its lease says when that is over.
                self._forget_permit(run)
            else:
                self._give_back(run, Result.NOTHING, began=False)

    def close(self) -> None:
        """Start nothing more; what runs goes on and gives its permits to others."""
        self._closing = True
        self._drop_undecided()
        for calls in self.groups:
            calls.outbox.unspare()
            # What it parks has to be acknowledged while the broker is still there.
            calls.wait()

    def finish(self) -> None:
        """The pool has stopped: nothing of ours runs any more."""
        for run in [*self._running, *self._granted]:
            self._give_back(run, Result.NOTHING, began=run.state is State.RUNNING)
        self._running.clear()
        self._granted.clear()
        for calls in self.groups:
            calls.outbox.unspare()
            calls.wait()
            calls.leave()

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
        if any(run.permit is not None for run in self._running):
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

    def _stops(self) -> bool:
        if not self._closing and self._slots.gone:
            self.close()
        return self._closing

    def _drop_undecided(self) -> None:
        dropped = [*self._waiting, *self._later]
        for calls in self.groups:
            dropped += calls.outbox.forget_arrivals()
        for outage in self._outages.values():
            dropped += outage.forget()
        for run in dropped:
            self._decided(run, State.GONE)
        # What is under way is answered by its facts when the reply is there.
        for run in list(self._undecided):
            self._decided(run, State.GONE)
        for run in self._granted:
            run.state = State.GONE
            self._give_back(run, Result.NOTHING, began=False)
        for held in (self._waiting, self._later, self._granted):
            held.clear()

    # -- slots ---------------------------------------------------------------------------------------------------

    @property
    def free_slots(self) -> int:
        """How many more tasks could run."""
        taken = len(self._running) + self._asking + sum(calls.offered for calls in self.groups)
        return self._slots.size - taken

    def tick(self) -> None:
        """Hand out free slots, send what the store has to know, and let the pool go on."""
        try:
            if self._stops():
                self._send_rest()
            else:
                self._hand_out()
        finally:
            self._slots.pass_on(self._loop.hub)

    def _send_rest(self) -> None:
        for calls in self.groups:
            if self._loop.detached:
                calls.wait()
            elif calls.free and not calls.idle:
                calls.send(0)

    def _hand_out(self) -> None:
        while self._granted and self.free_slots > 0:
            self._execute(self._granted.popleft())
        offers = {calls: self._offer(calls) for calls in self.groups if calls.free}
        reserved = sum(offers.values())
        while self._waiting and self.free_slots - reserved > 0:
            self._enter(self._waiting.popleft())
        for calls, slots in offers.items():
            reserved -= slots
            if not self._waiting and self._queues:
                slots = max(self.free_slots - reserved, 0)  # noqa: PLW2901 - nobody else wants them
            if self._must_send(calls, slots):
                calls.send(slots)

    def _offer(self, calls: Calls) -> int:
        """Return how many slots the next call has for parked tasks although others wait for slots here."""
        free = max(self.free_slots, 0)
        if not self._queues or not free or not (calls.hungry or calls.freed):
            return 0
        if self._waiting:
            # Both the parked and those who wait here want this slot: they take turns, so that neither starves.
            self._parked_first = not self._parked_first
            if not self._parked_first:
                return 0
        return min(free, max(calls.freed, 1))

    def _must_send(self, calls: Calls, slots: int) -> bool:
        if calls.outbox.urgent or (calls.hungry and slots):
            return True
        if not calls.outbox.lazy:
            return False
        now = monotonic()
        if calls.lazy_since is None:
            calls.lazy_since = now
            self._timekeeper.later(_LAZY, self._loop.wake)
        return now - calls.lazy_since >= _LAZY

    # -- arrivals ------------------------------------------------------------------------------------------------

    def _arrive(self, request: Any) -> None:
        if self._stops():
            return
        queue = self._queues.queue_of(request.message) if self._queues else ""
        try:
            run = self._tasks.run_of(request, self._epoch, queue)
        except Exception as error:  # noqa: BLE001 - the user's own function, too
            fail(request, error)
            return
        self._line_up(run)

    def _line_up(self, run: Run) -> None:
        if self._has_to_wait(run):
            # It takes no slot to be parked, and whoever waits here without a ticket would be overtaken.
            self._enter(run)
        elif not self._waiting and self.free_slots > 0:
            self._enter(run)
        else:
            run.state = State.WAITING
            self._waiting.append(run)

    def _enter(self, run: Run) -> None:
        if not run.guarded:
            self._execute(run)
        elif not run.request.revoked():
            self._admit(run)

    def _admit(self, run: Run) -> None:
        calls = self._groups[run.group]
        run.nonce = run.nonce or calls.nonce()
        if not calls.link.up:
            self._hold(run)
        elif self._has_to_wait(run):
            self._park(run)
        elif self._is_plain(run) and (permit := calls.outbox.take(run)) is not None:
            self._hold_permit(run, permit)
            self._execute(run)
        else:
            run.state = State.ASKING
            self._asking += 1
            self._undecided[run] = None
            calls.outbox.asked.append(run)

    def _has_to_wait(self, run: Run) -> bool:
        return run.needs.waits_in(self._closed) and not run.asks

    def _is_plain(self, run: Run) -> bool:
        """Whether the permit of one like it will do: only a number limits it, and it comes for the first time."""
        first = not run.stored and not run.redelivered and not run.asks
        return first and not run.lock and self._tasks.is_plain(run)

    def _park(self, run: Run) -> None:
        try:
            run.parcel = pack(run.request.message)
        except TypeError as error:
            # Nobody else could run it, so it must not wait for ever: say so in its result.
            self._decided(run, State.GONE)
            fail(run.request, error)
            return
        if self._tasks.is_paced(run):
            # Found out only when its turn has come, it would have cost others a start.
            run.needs = expiring(run.needs, run.request)
        self._decided(run, State.PARKING)
        run.asks = False
        self._undecided[run] = None
        self._groups[run.group].outbox.parked.append(run)

    def _decided(self, run: Run, now: State) -> bool:
        """Whether the run still waited for the store's word; from now on it does not."""
        if run.state is State.ASKING:
            self._asking -= 1
        waited = run in self._undecided
        self._undecided.pop(run, None)
        run.state = now
        return waited

    def _shut(self, bucket: str, calls: Calls) -> None:
        """There is no room, or a line: those who wait here for a slot get in line, and no permit is passed on."""
        if bucket in self._closed:
            return
        self._closed.add(bucket)
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
            calls.outbox.ended(run.request.id, run.nonce, run.facts(Result.NOTHING, began=False, epoch=self._epoch))
            return
        self._decided(run, State.GRANTED)
        if fencing_token:
            # In the plan too, should the lock have to be put back; that of a parked one comes with its token.
            run.lock = with_fencing_token(run.lock, fencing_token)
            run.fence(fencing_token)
        self._hold_permit(run, Permit(run))
        if had_slot:
            self._execute(run)
        else:
            self._granted.append(run)

    def refused(self, run: Run) -> None:
        """See `Decisions`."""
        if run in self._undecided:
            self._park(run)

    def parked(self, run: Run) -> None:
        """See `Decisions`."""
        self._decided(run, State.GONE)
        run.parcel = b""
        request = run.request
        if run.epoch == self._epoch:
            self._forget(request)
            with suppress(OSError):  # kombu logs it
                request.acknowledge()
            logger.debug("Task %s[%s] parked", request.name, request.id)
        if run.at_broker:
            self._groups[run.group].outbox.unacked(request.id)

    def crowded(self, run: Run) -> None:
        """See `Decisions`."""
        if not self._decided(run, State.LATER):
            return
        pause = min(_CROWDED * 2**run.refusals, _CROWDED_MOST)
        run.refusals += 1
        self._later.add(run)
        if len(self._later) <= _HELD_MOST:
            self._prefetch(1)
        if run.refusals == 1:
            logger.info("Task %s[%s] waits here: max_parked", run.request.name, run.request.id)
        if len(self._later) == _HELD_MOST:
            logger.warning(
                "celery_throttle: %d tasks wait in this worker because as many are parked as max_parked allows; "
                "more stay in the broker, also others of these queues", _HELD_MOST,
            )  # fmt: skip
        self._timekeeper.later(pause, lambda: self._loop.post(self._come_again, run))

    def _come_again(self, run: Run) -> None:
        if run.state is State.LATER:  # else the broker delivers it again
            if len(self._later) <= _HELD_MOST:
                self._prefetch(-1)
            self._later.discard(run)
            self._line_up(run)

    def resumed(self, grant: Grant, calls: Calls) -> None:
        """See `Decisions`."""
        if self._closing or self._requests is None:
            self._refuse(grant, calls, Facts(began=False, message=Message.PLACE))
            return
        run = Run(
            None,
            epoch=self._epoch,
            queue=grant.queue,
            group=calls.group,
            needs=needs_again(grant.needs),
            nonce=grant.nonce,
            stored=True,
        )
        run.lock = grant.lock.spec if grant.lock else ""
        if not self._unpack(run, grant, calls, self._requests):
            return
        run.permit = Permit(run)
        calls.held[grant.nonce] = run.permit
        if grant.expired:
            # As Celery says it of one that waited in the broker for too long.
            logger.info("Task %s[%s] expired: it waited for too long", run.request.name, run.request.id)
            self._tell(run, lambda: run.request._announce_revoked("expired", False, None, True))  # noqa: SLF001
        elif grant.lock and not grant.lock.starts:
            lock = grant.lock
            self._tell(run, lambda: say(run.request, lock))
        else:
            self._start_resumed(run, grant)

    def _start_resumed(self, run: Run, grant: Grant) -> None:
        if run.request.revoked():
            self._end(run, Facts(began=False, message=Message.NOBODY))
            return
        logger.info("Task %s[%s] resumed", run.request.name, run.request.id)
        state.task_reserved(run.request)
        if grant.lock and grant.lock.fencing_token:
            run.fence(grant.lock.fencing_token)
        if self.free_slots > 0:
            self._execute(run)
        else:
            run.state = State.GRANTED
            self._granted.append(run)

    def _tell(self, run: Run, told: Callable[[], None]) -> None:
        """Say what became of a task that does not run; if that fails, its message goes back in line."""
        try:
            told()
        except BaseException:
            self._end(run, Facts(began=False, message=Message.PLACE))
            raise
        self._end(run, Facts(began=False, message=Message.NOBODY))

    def _refuse(self, grant: Grant, calls: Calls, facts: Facts) -> None:
        calls.outbox.ended(grant.task, grant.nonce, facts)

    def sent_back(self, run: Run) -> None:
        """See `Decisions`."""
        self._forget_permit(run)
        run.parcel = b""
        run.request.acknowledge()

    def withdrawn(self, each: Withdrawn) -> None:
        """See `Decisions`."""
        if self._requests is None:
            return
        ignore = lambda *args: None  # noqa: E731
        try:
            self._requests.make(each.message, redelivered=False, on_ack=ignore, on_reject=ignore).revoked()
        except Declined:
            logger.debug("Revoked task %s has left its line", each.task)

    def answered(self, reply: Reply, calls: Calls) -> None:
        """See `Decisions`."""
        # Only now: those who were refused in this reply came before those who wait here for a slot.
        self._closed.difference_update(reply.open)
        for bucket in reply.closed:
            self._shut(bucket, calls)
        if len(self._closed) > _CLOSED_MOST:
            self._closed.clear()
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

    # -- runs ----------------------------------------------------------------------------------------------------

    def _execute(self, run: Run) -> None:
        run.state = State.RUNNING
        self._running.add(run)
        watch(
            run,
            lambda result: self._loop.post(self._ended, run, result),
            lambda error: self._loop.post(self._limited, run, error),
        )
        try:
            run.job = self._slots.run(run.request, lambda error: self._loop.post(self._died, run, error))
        except TaskRevokedError:
            self._unstarted(run, Message.NOBODY)
        except BaseException:
            self._unstarted(run, Message.PLACE if run.stored else Message.BROKER)
            raise
        if self._loop.turning and not self._slots.passed_on:
            self._loop.wake()

    def _unstarted(self, run: Run, message: Message) -> None:
        self._running.discard(run)
        if run.permit is not None:
            self._end(run, Facts(began=False, message=message))

    def _run_unthrottled(self, run: Run) -> None:
        self._decided(run, State.RUNNING)
        self._execute(run)

    def _ended(self, run: Run, result: Result) -> None:
        if run in self._running:
            self._running.discard(run)
            run.state = State.GONE
            self._give_back(run, result, began=True)

    def _died(self, run: Run, error: BaseException) -> None:
        # After a body too: the result backend was away, say. Celery hears nothing, so the broker delivers it again.
        if run in self._running:
            logger.error("Task %s[%s] ended without an outcome", run.request.name, run.request.id, exc_info=error)
            state.task_ready(run.request)
            self._ended(run, Result.NOTHING)

    def _limited(self, run: Run, error: RateLimited) -> None:
        if run not in self._running:
            return
        request = run.request
        state.task_ready(request)
        if not run.needs.buckets or run.permit is None:
            said = f"Task {request.name} raised RateLimited, but it has no limit: give it one, limit=5 or rate='100/m'"
            fail(request, ConfigurationError(said))
            self._ended(run, Result.FAILURE)
            return
        self._running.discard(run)
        run.state = State.GONE
        costs = costs_of(run.needs.text)
        about = [each for each in costs if error.limit in (None, each[0].name)] or costs
        logger.info("Task %s[%s] is rate limited: %s", request.name, request.id, error)
        request.send_event("task-rate-limited", retry_after=error.retry_after)
        # It has been packed before, or could be: its message came from a broker.
        run.parcel = pack(request.message)
        calls = self._groups[run.group]
        calls.outbox.settle(run.permit)
        calls.outbox.back.append((run, error.retry_after, needs_text(about)))

    def _give_back(self, run: Run, result: Result, *, began: bool) -> None:
        permit = run.permit
        if permit is None:
            return
        facts = run.facts(result, began=began, epoch=self._epoch)
        calls = self._groups[run.group]
        passes = began and facts.message is Message.NOBODY and result is not Result.NOTHING and not self._closing
        if passes and self._tasks.is_plain(run) and not run.lock and not run.needs.waits_in(self._closed):
            self._forget_permit(run)
            calls.outbox.spare(permit, result)
        else:
            self._end(run, facts)

    def _end(self, run: Run, facts: Facts) -> None:
        calls, permit = self._groups[run.group], run.permit
        if permit is None:
            return
        calls.outbox.settle(permit)
        calls.outbox.ended(run.request.id, run.nonce, facts)
        calls.freed += not run.needs.buckets or run.needs.waits_in(self._closed)
        self._forget_permit(run)

    def _hold_permit(self, run: Run, permit: Permit) -> None:
        run.permit = permit
        self._groups[run.group].held[run.nonce] = permit

    def _forget_permit(self, run: Run) -> None:
        self._groups[run.group].held.pop(run.nonce, None)
        run.permit = None

    # -- resumed tasks -------------------------------------------------------------------------------------------

    def _unpack(self, run: Run, grant: Grant, calls: Calls, requests: RequestFactory) -> bool:
        conclude = grant.lock.first if grant.lock and grant.lock.verdict == "conclude" else ""
        try:
            run.request = requests.make(
                grant.message,
                redelivered=grant.deliveries > 0,
                on_ack=lambda *args: self._loop.post(self._acknowledged, run),
                on_reject=lambda logger, errors, requeue: setattr(run, "requeue", requeue),
                conclude=conclude,
            )
        except Declined:
            message = Message.TAIL if run.requeue else Message.NOBODY
            self._refuse(grant, calls, Facts(began=False, message=message))
            return False
        except Exception as error:
            # As Celery does with a message that it cannot use: not registered, or content that it may not decode.
            logger.exception("Parked task %s cannot run here", grant.task)
            self._refuse(grant, calls, Facts(began=False, message=Message.NOBODY, result=Result.FAILURE))
            self._consumer.app.backend.mark_as_failure(grant.task, error)
            return False
        return True

    def _acknowledged(self, run: Run) -> None:
        # With late acknowledgement the message stays until the permit is given back.
        if run in self._running and not run.request.task.acks_late:
            self._groups[run.group].outbox.began(run.request.id, run.nonce)

    def _forget(self, request: Any) -> None:
        """Undo what Celery noted of a request that will not run here now."""
        state.reserved_requests.discard(request)
        task_id: str = request.id
        if state.requests.get(task_id) is request:
            del state.requests[task_id]
            # A second delivery must not hide the first one from `inspect` and `revoke`.
            state.requests.update((task_id, run.request) for run in self._running if run.request.id == task_id)

    # -- when the store is out of reach --------------------------------------------------------------------------

    def store_lost(self, error: Exception, calls: Calls) -> None:
        """The connection broke: whoever waits for the store's word waits without a slot."""
        logger.warning("celery_throttle: lost the store, connecting again: %s", error)
        unsent = set(calls.outbox.forget_arrivals())
        for run in [run for run in self._undecided if run.group == calls.group]:
            if run in unsent:
                self._hold(run)
            elif run.state is State.ASKING:
                # Its call is sent again, and answered then.
                self._asking -= 1
                run.state = State.UNSURE

    def _hold(self, run: Run) -> None:
        self._decided(run, State.LATER)
        self._outages[run.group].meet(run)

    def store_unreachable(self, error: Exception, calls: Calls) -> None:
        """See `Decisions`."""
        outage = self._outages[calls.group]
        outage.unreachable(error)
        if outage.waits:
            return
        for run in [run for run in self._undecided if run.group == calls.group]:
            self._hold(run)

    def store_up(self, calls: Calls) -> None:
        """The store answers (again)."""
        held = self._outages[calls.group].over()
        for run in held:
            run.state = State.WAITING
        self._waiting.extendleft(reversed(held))
        calls.hungry = True

    def put_off(self, runs: list[Run], calls: Calls) -> None:
        """See `Decisions`."""
        again = [run for run in runs if self._decided(run, State.LATER)]
        for run in again:
            run.asks = True
        self._later.update(again)
        self._prefetch(len(again))
        self._timekeeper.later(_PUT_OFF, lambda: self._loop.post(self._try_again, again, calls))

    def _try_again(self, runs: list[Run], calls: Calls) -> None:
        calls.go_on()
        here = [run for run in runs if run.state is State.LATER]  # the others are left to the broker
        self._prefetch(-len(here))
        self._later.difference_update(here)
        for run in here:
            run.state = State.WAITING
        self._waiting.extendleft(reversed(here))

    def _prefetch(self, more: int) -> None:
        qos = getattr(self._consumer, "qos", None)
        if qos is not None and more > 0:
            qos.increment_eventually(more)
        elif qos is not None and more < 0:
            qos.decrement_eventually(-more)
