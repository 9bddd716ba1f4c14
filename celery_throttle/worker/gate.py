"""The gate: where a task gets its permit and a slot of the pool, or is parked.

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
from celery_throttle.core.terms import NOTHING, needs_again
from celery_throttle.errors import ConfigurationError
from celery_throttle.worker.ledger import Ledger
from celery_throttle.worker.needs import expiring, needs_of
from celery_throttle.worker.outage import Outage, fail
from celery_throttle.worker.parcel import pack
from celery_throttle.worker.plans import plan_of
from celery_throttle.worker.requests import Declined
from celery_throttle.worker.runs import Run, watch
from celery_throttle.worker.slots import Slots
from celery_throttle.worker.verdicts import say

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_throttle.core.dedup import Dedup
    from celery_throttle.core.settings import Settings
    from celery_throttle.core.terms import Terms
    from celery_throttle.limited import RateLimited
    from celery_throttle.store.replies import Grant, Reply, Withdrawn
    from celery_throttle.store.scripts import Store
    from celery_throttle.worker.leases import Leases
    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.queues import QueueMap
    from celery_throttle.worker.requests import RequestFactory
    from celery_throttle.worker.runs import Outcome
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["Gate"]

logger = logging.getLogger(__name__)

#: Seconds between two looks of a worker on its own, when no hint comes.
LOOK_EVERY = 5.0
#: Limits, by key, that are known to be full; to forget them only means to ask the store again.
_CLOSED_MOST = 10_000
#: Seconds until a call that the store refused (out of memory, read-only) is tried again.
_PUT_OFF = 1.0
#: The same for a task that may not be parked because too many are; twice as long each time.
_CROWDED, _CROWDED_MOST = 0.5, 30.0


class Gate:
    """Admits, parks and resumes the requests of one worker.

    Args:
        pool: Celery's pool; its number of processes is the number of slots.
        terms: the limits of each task that has some, by the task's name.
        dedups: how each task runs once that does, by the task's name.
        settings: of the app.
        timekeeper: for everything that has to happen later.
        grow: called when a parked task could start here, if there were a slot more.
    """

    loop: Loop
    leases: Leases

    def __init__(
        self,
        pool: Any,
        terms: Mapping[str, Terms],
        dedups: Mapping[str, Dedup],
        settings: Settings,
        timekeeper: Timekeeper,
        grow: Callable[[], None],
    ) -> None:
        self._slots, self._terms, self._dedups, self._timekeeper = Slots(pool), terms, dedups, timekeeper
        #: By the name of their group.
        self.ledgers: dict[str, Ledger] = {}
        self._settings, self._grow = settings, grow
        self._waiting: deque[Run] = deque()  # for a slot
        self._entering: dict[Run, None] = {}  # have a slot, wait for the store's word
        self._lining: dict[Run, None] = {}  # have none, are being parked
        self._running: set[Run] = set()
        self._claims = 0  # slots set aside for parked tasks in calls under way
        self._closed: set[str] = set()  # limits that are full or have a line, as far as we know
        self._full: set[str] = set()  # limits that the reply being read says are full
        self._parked_first = False
        self._closing = False
        self._queues: QueueMap | None = None
        self._last_queues: QueueMap | None = None  # also while there is no broker connection
        self._factory: RequestFactory | None = None
        self._consumer: Any = None

    def add(self, group: str, store: Store, worker_id: str) -> Ledger:
        """Make the ledger of a group."""
        ours = [terms for terms in self._terms.values() if self._settings.group_of(terms.group) == group]
        declared = {limit.name: limit.declared for terms in ours for limit in terms.limits}
        outage = Outage(self._settings.on_store_error, self._execute, self._prefetch)
        self.ledgers[group] = ledger = Ledger(store, worker_id, self, declared, outage)
        return ledger

    # -- what Celery calls ---------------------------------------------------------------------------------------

    def arrive(self, request: Any) -> None:
        """Take a request that the consumer would give to the pool."""
        self.loop.call(self._arrive, request)

    def connected(self, consumer: Any, queues: QueueMap, factory: RequestFactory) -> None:
        """The worker consumes again: from these queues, with requests made by this factory."""
        self._consumer, self._queues, self._factory = consumer, queues, factory
        self._last_queues = queues
        self.look_soon()

    def disconnected(self) -> None:
        """The broker connection is gone: it will deliver again what was not acknowledged, so drop all that."""
        self._drop_undecided()
        self._queues = self._factory = None
        for run in [run for run in self._running if self._slots.discarded(run.request)]:
            self._running.discard(run)
            if self._slots.was_sent(run.job):
                # A child may just have begun it, and will not tell. Its lease says when that is over.
                self.leases.remove(run)
            elif run.permit:
                self._give_back(run, "return")

    def close(self) -> None:
        """Start nothing more; what runs goes on and gives its permit to others."""
        self._closing = True
        self._drop_undecided()

    def finish(self) -> None:
        """The pool has stopped: nothing of ours runs any more."""
        for run in self.leases.all():
            self._give_back(run, "return")
        for ledger in self.ledgers.values():
            ledger.flush(0, 0)
            ledger.leave()

    def _stops(self) -> bool:
        if not self._closing and self._slots.gone:
            self.close()
        return self._closing

    def _drop_undecided(self) -> None:
        for group in (self._waiting, self._entering, self._lining):
            group.clear()
        for ledger in self.ledgers.values():
            ledger.outage.forget()
            ledger.forget_unsent()

    # -- slots ---------------------------------------------------------------------------------------------------

    @property
    def _free_slots(self) -> int:
        return self._slots.size - len(self._running) - len(self._entering) - self._claims

    def tick(self) -> None:
        """Hand out free slots, send what the store has to know, and let the pool go on."""
        try:
            self._hand_out()
        finally:
            self._slots.pass_on(self.loop.hub)

    def _hand_out(self) -> None:
        ledgers = list(self.ledgers.values())
        if self._stops():
            for ledger in ledgers:
                ledger.flush(0, 0)
                if self.loop.detached:
                    ledger.wait()
            return
        claims: list[int] = []
        for ledger in ledgers:
            claims.append(self._claim(ledger, sum(claims)))
        rest = sum(claims)
        while self._waiting and self._free_slots - rest > 0:
            self._enter(self._waiting.popleft())
        for ledger, claim in zip(ledgers, claims, strict=True):
            # What those after it have claimed is theirs.
            rest -= claim
            slots = claim if self._waiting or not self._queues else max(self._free_slots - rest, 0)
            ledger.flush(slots, min(self._free_slots, 0))

    def _claim(self, ledger: Ledger, taken: int) -> int:
        """Return how many slots go to the lines of the permits given back now; look if there may be more to start."""
        free = max(self._free_slots - taken, 0)
        released = ledger.released_limits
        claims = min(free, sum(not limits or not self._closed.isdisjoint(limits) for limits in released))
        if self._waiting and free and (claims or ledger.hungry):
            # Both the parked and those who wait here want this slot: they take turns, so that neither starves.
            self._parked_first = not self._parked_first
            if not self._parked_first:
                return 0
        if ledger.hungry and free > claims and self._queues:
            ledger.hungry = not ledger.look(1 if self._waiting else free - claims)
        return claims

    def _arrive(self, request: Any) -> None:
        if self._stops():
            return
        run = Run(request, NOTHING)
        # Where throttling was turned off, the gate is only there for what is still parked.
        if not self._settings.enabled or self._plan(run):
            self._line_up(run)

    def _line_up(self, run: Run) -> None:
        slot = not self._waiting and self._free_slots > 0
        if slot or run.needs.waits_in(self._closed):
            # It takes no slot to be parked, and whoever waits here without a ticket would be overtaken.
            self._enter(run, slot=slot)
        else:
            self._waiting.append(run)

    def _plan(self, run: Run) -> bool:
        """Find out which permits and which lock the run needs; False if that cannot be told, and it has ended."""
        request = run.request
        terms, dedup = self._terms.get(request.task.name), self._dedups.get(request.task.name)
        try:
            if terms is not None or dedup is not None:
                run.ledger = self._ledger_of(terms)
            if terms is not None:
                run.needs = needs_of(request, request.task, terms)
            if dedup is not None:
                run.lock = plan_of(request, request.task, dedup).spec
        except Exception as error:  # noqa: BLE001 - the user's own function, too
            fail(request, error)
            return False
        return True

    def _ledger_of(self, terms: Terms | None) -> Ledger:
        return self.ledgers[self._settings.group_of(terms.group if terms is not None else None)]

    def never_runs(self, task: Any, context: Any) -> None:
        """A task was revoked or has expired: its lock is free."""
        dedup = self._dedups.get(task.name)
        if dedup is not None:
            ledger = self._ledger_of(self._terms.get(task.name))
            ledger.give_up(plan_of(context, task, dedup).identity, context.id)

    def _enter(self, run: Run, *, slot: bool = True) -> None:
        if not run.guarded:
            self._execute(run)
        elif not run.request.revoked():
            self._admit(run, slot=slot)

    def _execute(self, run: Run) -> None:
        self._running.add(run)
        watch(
            run.request,
            lambda outcome: self.loop.post(self._ended, run, outcome),
            lambda error: self.loop.post(self._limited, run, error),
        )
        try:
            run.job = self._slots.run(run.request, lambda error: self.loop.post(self._died, run, error))
        except TaskRevokedError:
            self._ended(run, "never")
        except BaseException:
            self._ended(run, "again")
            raise
        if self.loop.turning and not self._slots.passed_on:
            self.loop.wake()

    def _ended(self, run: Run, outcome: Outcome) -> None:
        if run in self._running:
            self._running.discard(run)
            if run.requeue:
                outcome = "requeue"
            elif outcome == "again" and run.stored and not run.request.acknowledged:
                # Cancelled, by a cold shutdown say: the broker would deliver it again, so the store has to.
                outcome = "lost"
            if run.permit:
                self._give_back(run, outcome)

    def _died(self, run: Run, error: BaseException) -> None:
        # After a body too: the result backend was away, say. Celery hears nothing, so the broker delivers it again.
        if run in self._running:
            logger.error("Task %s[%s] ended without an outcome", run.request.name, run.request.id, exc_info=error)
            state.task_ready(run.request)
            self._ended(run, "again")

    def _limited(self, run: Run, error: RateLimited) -> None:
        if run not in self._running:
            return
        self._running.discard(run)
        request = run.request
        state.task_ready(request)
        if not run.needs.pools or not run.permit:
            said = f"Task {request.name} raised RateLimited, but it has no limit: give it one, limit=5 or rate='100/m'"
            fail(request, ConfigurationError(said))
            if run.permit:
                self._give_back(run, "failed")
            return
        about = [pool for pool in run.needs.pools if error.limit in (None, pool.partition("\x1f")[0])]
        logger.info("Task %s[%s] is rate limited: %s", request.name, request.id, error)
        request.send_event("task-rate-limited", retry_after=error.retry_after)
        queue = self._last_queues.queue_of(request.message) if self._last_queues else ""
        # It has been packed before, or could be: its message came from a broker.
        run.ledger.send_back(run, queue, pack(request.message), error.retry_after, about or list(run.needs.pools))

    def sent_back(self, run: Run) -> None:
        """See `Decisions`."""
        self.leases.remove(run)
        run.request.acknowledge()

    def _give_back(self, run: Run, outcome: Outcome) -> None:
        self.leases.remove(run)
        run.ledger.release(run.needs.pools, run.request.id, run.nonce, outcome)

    def tend_pool(self) -> None:
        """Notice lost children while there is a permit to get back from them."""
        if any(run.permit for run in self._running):
            self._slots.tend()

    # -- permits -------------------------------------------------------------------------------------------------

    def _admit(self, run: Run, *, slot: bool) -> None:
        run.nonce = run.nonce or run.ledger.nonce()
        if not run.ledger.link.up:
            run.ledger.outage.meet(run)
        elif not run.permit and run.needs.waits_in(self._closed):
            self._park(run, slot=slot)
        else:
            self._entering[run] = None
            run.ledger.ask(run)

    def _park(self, run: Run, *, slot: bool) -> None:
        message = run.request.message
        try:
            parcel = pack(message)
        except TypeError as error:
            # Nobody else could run it, so it must not wait for ever: say so in its result.
            self._take_out(run)
            fail(run.request, error)
            return
        terms = self._terms.get(run.request.task.name)
        if terms is not None and terms.paced:
            # Found out only when its turn has come, it would have cost others a start.
            run.needs = expiring(run.needs, run.request)
        (self._entering if slot else self._lining)[run] = None
        run.ledger.park(run, self._queues.queue_of(message) if self._queues else "", parcel, slot=slot)

    def _shut(self, limit: str) -> None:
        """No permit is free: those who wait here for a slot get in line."""
        self._closed.add(limit)
        waiting, self._waiting = self._waiting, deque()
        for run in waiting:
            # One that has asked before may hold a permit already, and must not be parked behind itself.
            if not run.permit and run.needs.waits_in({limit}):
                self._enter(run, slot=False)
            else:
                self._waiting.append(run)

    def claimed(self, count: int) -> None:
        """See `Decisions`."""
        self._claims += count

    def granted(self, run: Run, *, last: bool, fencing_token: int) -> None:
        """See `Decisions`."""
        if last:
            self._full.add(run.needs.pool)
        if run not in self._entering:
            # Its broker connection was lost meanwhile; the broker delivers it again.
            self._give_back(run, "never")
            return
        del self._entering[run]
        if fencing_token:
            # In the plan too, should the lock have to be put back; that of a parked one comes with its token.
            run.lock = with_fencing_token(run.lock, fencing_token)
            run.fence(fencing_token)
        self.leases.add(run)
        self._execute(run)

    def refused(self, run: Run) -> None:
        """See `Decisions`."""
        if run in self._entering:
            run.permit = False
            if len(run.needs.pools) == 1 and not run.lock:  # else it may be its lock that is taken
                self._full.add(run.needs.pool)
            self._park(run, slot=True)

    def parked(self, run: Run) -> None:
        """See `Decisions`."""
        if self._take_out(run):
            request = run.request
            request.acknowledge()
            self._forget(request)
            logger.debug("Task %s[%s] parked", request.name, request.id)

    def crowded(self, run: Run) -> None:
        """See `Decisions`."""
        if self._take_out(run):
            run.permit = False
            pause = min(_CROWDED * 2**run.refusals, _CROWDED_MOST)
            run.refusals += 1
            self._prefetch(1)
            self._timekeeper.later(pause, lambda: self.loop.post(self._come_again, run, self._queues))

    def _come_again(self, run: Run, queues: QueueMap | None) -> None:
        if queues is self._queues and not self._stops():  # else the broker delivers it again
            self._prefetch(-1)
            self._line_up(run)

    def _take_out(self, run: Run) -> bool:
        """Whether the run still waited for the store's word; now it does not."""
        known = run in self._entering or run in self._lining
        self._entering.pop(run, None)
        self._lining.pop(run, None)
        return known

    def resumed(self, grant: Grant, ledger: Ledger) -> None:
        """See `Decisions`."""
        if grant.limit and (grant.lock is None or grant.lock.verdict == "run"):
            self._full.add(grant.limit)
        if self._stops() or self._factory is None:
            ledger.release((grant.limit,), grant.task_id, grant.nonce, "return")
            return
        run = self._unpack(grant, ledger, self._factory)
        if run is None:
            return
        if grant.expired:
            # As Celery says it of one that waited in the broker for too long.
            logger.info("Task %s[%s] expired: it waited for too long", run.request.name, run.request.id)
            run.request._announce_revoked("expired", False, None, True)  # noqa: SLF001
            self._give_back(run, "never")
        elif run.request.revoked():
            self._give_back(run, "never")
        elif grant.lock and not grant.lock.starts:
            say(run.request, grant.lock)
            self._give_back(run, "done")
        else:
            logger.info("Task %s[%s] resumed", run.request.name, run.request.id)
            state.task_reserved(run.request)
            if grant.lock and grant.lock.fencing_token:
                run.fence(grant.lock.fencing_token)
            self.leases.add(run)
            self._execute(run)

    def answered(self, reply: Reply, ledger: Ledger) -> None:
        """See `Decisions`."""
        # Only now: those who were refused in this reply came before those who wait here for a slot.
        for limit in self._full.difference(self._closed, reply.emptied):
            self._shut(limit)
        self._full.clear()
        self._closed.difference_update(reply.emptied)
        if len(self._closed) > _CLOSED_MOST:
            self._closed.clear()
        if reply.more:
            self._more_waits(ledger)
        at = monotonic() + reply.wait
        if reply.wait and (ledger.look_at is None or at < ledger.look_at):
            ledger.look_at = at
            self._timekeeper.later(reply.wait, lambda: self.loop.post(self._look_now, at, ledger))

    def _look_now(self, at: float, ledger: Ledger) -> None:
        if ledger.look_at == at:
            ledger.look_at = None
            ledger.hungry = True
            if self._free_slots <= 0:
                # Maybe nobody else knows: those who have a slot get a hint.
                ledger.look(0)

    def look_soon(self) -> None:
        """There may be something to start."""
        for ledger in self.ledgers.values():
            ledger.hungry = True

    def hint(self, queue: str, ledger: Ledger) -> None:
        """Somebody says that a task of this queue can start."""
        if self._queues and queue in self._queues.names:
            self._more_waits(ledger)

    def _more_waits(self, ledger: Ledger) -> None:
        ledger.hungry = True
        if self._free_slots <= 0 and not self._stops():
            self._grow()

    # -- resumed tasks -------------------------------------------------------------------------------------------

    def _unpack(self, grant: Grant, ledger: Ledger, factory: RequestFactory) -> Run | None:
        run = Run(None, needs_again(grant.limit, grant.more, ledger.declared), grant.nonce, stored=True)
        run.ledger = ledger
        run.lock = grant.lock.spec if grant.lock else ""
        conclude = grant.lock.first if grant.lock and grant.lock.verdict == "conclude" else ""
        try:
            run.request = factory.make(
                grant.message,
                redelivered=grant.deliveries > 0,
                on_ack=lambda *args: self.loop.post(self._acknowledged, run),
                on_reject=lambda logger, errors, requeue: setattr(run, "requeue", requeue),
                conclude=conclude,
            )
        except Declined:
            ledger.release((grant.limit,), grant.task_id, grant.nonce, "requeue" if run.requeue else "never")
            return None
        except Exception as error:
            # As Celery does with a message that it cannot use: not registered, or content that it may not decode.
            logger.exception("Parked task %s cannot run here", grant.task_id)
            self._consumer.app.backend.mark_as_failure(grant.task_id, error)
            ledger.release((grant.limit,), grant.task_id, grant.nonce, "done")
            return None
        return run

    def _acknowledged(self, run: Run) -> None:
        # With late acknowledgement the message stays until the permit is given back.
        if run in self._running and not run.request.task.acks_late:
            run.ledger.started(run)

    def _forget(self, request: Any) -> None:
        """Undo what Celery noted of a request that will not run here now."""
        state.reserved_requests.discard(request)
        task_id: str = request.id
        if state.requests.get(task_id) is request:
            del state.requests[task_id]
            # A second delivery must not hide the first one from `inspect` and `revoke`.
            state.requests.update((task_id, run.request) for run in self._running if run.request.id == task_id)

    def withdraw(self, tasks: list[str]) -> None:
        """Answer for revoked tasks that are parked, without waiting for their turn."""
        for ledger in self.ledgers.values():
            ledger.withdraw(tasks, self._withdrawn)

    def _withdrawn(self, parked: Withdrawn) -> None:
        if self._factory:
            ignore = lambda *args: None  # noqa: E731
            with suppress(Declined):
                self._factory.make(parked.message, redelivered=False, on_ack=ignore, on_reject=ignore).revoked()

    # -- when the store is out of reach --------------------------------------------------------------------------

    def store_lost(self, error: Exception, ledger: Ledger) -> None:
        """The connection broke: whoever waits for the store's word waits without a slot."""
        logger.warning("celery_throttle: lost the store, connecting again: %s", error)
        undecided = [run for run in (*self._entering, *self._lining) if run.ledger is ledger]
        for run in undecided:
            self._take_out(run)
        ledger.forget_unsent()
        self._lining.update((run, None) for run in ledger.parking if run in undecided)
        for run in undecided:
            if run not in self._lining:
                ledger.outage.meet(run)

    def store_up(self, ledger: Ledger) -> None:
        """The store answers (again)."""
        holding, held = [run for run in self.leases.all() if run.ledger is ledger], ledger.outage.over()
        ledger.declare()
        if holding:
            ledger.renew(holding, self.leases.judge)
        ledger.reconcile(run.nonce for run in (*holding, *held))
        self._waiting.extendleft(reversed(held))
        ledger.hungry = True

    def put_off(self, runs: list[Run], ledger: Ledger) -> None:
        """See `Decisions`."""
        again = [run for run in runs if self._take_out(run)]
        for run in again:
            run.permit = False
        # Asking works in a full store, parking does not.
        self._closed.difference_update(pool for run in again for pool in run.needs.pools)
        self._prefetch(len(again))
        self._timekeeper.later(_PUT_OFF, lambda: self.loop.post(self._try_again, again, self._queues, ledger))

    def _try_again(self, runs: list[Run], queues: QueueMap | None, ledger: Ledger) -> None:
        ledger.paused = False
        if queues is self._queues:  # else the broker connection was lost, and these requests with it
            self._prefetch(-len(runs))
            self._waiting.extendleft(reversed(runs))

    def _prefetch(self, more: int) -> None:
        qos = getattr(self._consumer, "qos", None)
        if qos is not None and more > 0:
            qos.increment_eventually(more)
        elif qos is not None and more < 0:
            qos.decrement_eventually(-more)
