"""Which run gets a slot of the pool: arrivals, those that have waited here, those with permits, and parked tasks.

A run that arrives takes a slot and asks the store for its permits, waits here for a slot, or is parked.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery_throttle.core.facts import Result
from celery_throttle.store.parcel import pack
from celery_throttle.worker.celery_side.requirements import expiring
from celery_throttle.worker.runs import Run, State

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from celery_throttle.worker.celery_side.broker import Broker
    from celery_throttle.worker.celery_side.slots import Slots
    from celery_throttle.worker.celery_side.tasks import Tasks
    from celery_throttle.worker.held_back.backend_away import BackendAway
    from celery_throttle.worker.held_back.held_back import HeldBack
    from celery_throttle.worker.held_back.outage import Outage
    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.running import Running
    from celery_throttle.worker.store_side.calls import Calls
    from celery_throttle.worker.store_side.closed_buckets import ClosedBuckets

__all__ = ["Admission"]

#: Seconds for which the store need not hear that a permit went from one task to the next, here.
_LAZY = 0.025
#: Seconds after which the broker may have given a message to another worker too (its visibility timeout), so that it
#: does not start before the store has heard of it.
_FRESH = 5.0


class Admission:
    """Admits runs, or parks them, and offers the other slots to parked tasks; all on the loop.

    Args:
        slots: of Celery's pool.
        tasks: what each request needs.
        groups: the calls of each group, by its name.
        broker: delivers the requests.
        closed: buckets in which arrivals have to wait.
        held: holds runs that wait.
        backend: holds runs of which the result backend cannot be told.
        running: starts runs.
        outages: of the store of each group, by its name.
        loop: everything happens on it.
        stops: returns whether the worker stops.
    """

    def __init__(
        self,
        slots: Slots,
        tasks: Tasks,
        groups: Mapping[str, Calls],
        broker: Broker,
        closed: ClosedBuckets,
        held: HeldBack,
        backend: BackendAway,
        running: Running,
        outages: Mapping[str, Outage],
        loop: Loop,
        stops: Callable[[], bool],
    ) -> None:
        self._slots, self._tasks, self._groups, self._broker, self._closed = slots, tasks, groups, broker, closed
        self._held, self._backend, self._running, self._outages = held, backend, running, outages
        self._loop, self._stops = loop, stops
        self._granted: deque[Run] = deque()
        self._parked_first = False
        self._timed = False  # whether a timer runs for what the store may hear late

    def arrive(self, request: Any) -> None:
        """Take a request that the consumer would give to the pool."""
        if self._stops():
            return
        if self._broker.queues is None:  # of a connection that is gone: its ETA has come since, and the broker has it
            self._running.forget(request)
            return
        try:
            run = self._tasks.run_of(request, self._broker.epoch, self._broker.queues)
        except Exception as error:  # noqa: BLE001 - the user's own function, too
            self._backend.fail(Run(request, epoch=self._broker.epoch), error, self._arrive_again)
            return
        self.line_up(run)

    def _arrive_again(self, runs: list[Run]) -> None:
        for run in runs:
            self.arrive(run.request)

    def line_up(self, run: Run) -> None:
        """Have a run enter now, or when it has a slot."""
        # It takes no slot to be parked, and whoever waits here without a ticket would be overtaken.
        if self._has_to_wait(run) or (not self._held.waiting and self._running.free_slots > 0):
            self.enter(run)
        else:
            run.state = State.WAITING
            self._held.waiting.append(run)

    def enter(self, run: Run) -> None:
        """Start a run that needs no permit; have another one ask for its permits, or be parked."""
        if not self._stops():  # else the broker delivers it again
            self._backend.attempt(self._go_in, run)

    def _go_in(self, run: Run) -> None:
        if not run.guarded:
            self._running.execute(run)
        elif not run.request.revoked():
            self._admit(run)

    def _admit(self, run: Run) -> None:
        calls, outage = self._groups[run.group], self._outages[run.group]
        run.nonce = run.nonce or calls.nonce()
        run.keeps = calls.saving is not None
        if not calls.link.up or outage.holds:
            outage.meet(run)  # behind those that came while the store was away, until it has heard what the limits are
        elif self._has_to_wait(run):
            self.park(run)
        elif self._is_plain(run) and (permit := calls.outbox.take(run)) is not None:
            self._running.hold_permit(run, permit)
            self._running.execute(run)
        else:
            self._held.hold(run, State.ASKING)
            calls.outbox.asked.append(run)

    def _has_to_wait(self, run: Run) -> bool:
        return self._closed.keep_waiting(run) and not run.asks

    def _is_plain(self, run: Run) -> bool:
        """Whether the permit of one like it will do: only a number limits it, and nobody else can have it."""
        if run.stored or run.redelivered or run.asks or not self._tasks.is_plain(run):
            return False
        # One with an ETA has been in this worker before it came here.
        return monotonic() - run.came < _FRESH and not run.request.request_dict.get("eta")

    def park(self, run: Run) -> None:
        """Have the store set a run aside."""
        try:
            run.parcel = pack(run.request.message)
        except (TypeError, ValueError) as error:
            self._backend.fail(run, error)  # nobody else could run it, so it must not wait for ever
            return
        if self._tasks.is_paced(run):
            # Found out only when its turn has come, it would have cost others a start.
            run.needs = expiring(run.needs, run.request)
        self._held.hold(run, State.PARKING)
        run.asks = False
        self._groups[run.group].outbox.parked.append(run)

    def close(self, bucket: str, calls: Calls) -> None:
        """There is no room, or a line: those who wait here for a slot get in line, and no permit is passed on."""
        if not self._closed.close(bucket):
            return
        calls.outbox.unspare()
        waiting = self._held.waiting
        for run in [waiting.popleft() for _ in range(len(waiting))]:
            if run.needs.waits_in({bucket}) and not run.asks:
                self.enter(run)
            else:
                waiting.append(run)

    # -- slots ---------------------------------------------------------------------------------------------------

    def start(self, run: Run) -> None:
        """Start a run that has a slot."""
        self._backend.attempt(self._running.execute, run)

    def start_later(self, run: Run) -> None:
        """Start a run that has its permits when there is a slot."""
        run.state = State.GRANTED
        self._granted.append(run)

    def resume(self, run: Run) -> None:
        """Start a run whose task was parked, now or when there is a slot."""
        if self._running.free_slots > 0 and not self._forgets_at_start(run):
            self.start(run)
        else:
            self.start_later(run)

    def forget(self) -> None:
        """Give back the permits of those that have not started."""
        for run in self._granted:
            run.state = State.GONE
            self._running.give_back(run, Result.NOTHING, began=False)
        self._granted.clear()

    def hand_out(self) -> None:
        """Start what has a slot, and make the calls that are due."""
        self.start_granted()
        waiting, running = self._held.waiting, self._running
        offers = {calls: self._offer(calls) for calls in self._groups.values() if calls.has_to_send}
        if not offers and not waiting:
            return
        reserved = sum(offers.values())
        while waiting and running.free_slots - reserved > 0:
            self.enter(waiting.popleft())
        for calls, slots in offers.items():
            reserved -= slots
            if not waiting and self._broker.queues:
                slots = max(running.free_slots - reserved, 0)  # noqa: PLW2901 - nobody else wants them
            if self._is_due(calls, slots):
                calls.send(slots)

    def _offer(self, calls: Calls) -> int:
        """Return how many slots the next call has for parked tasks although others wait for slots here."""
        free = self._running.free_slots
        if self._broker.queues is None or not (calls.hungry or calls.freed) or free <= 0:
            return 0
        if self._held.waiting:
            # Both the parked and those who wait here want this slot: they take turns, so that neither starves.
            self._parked_first = not self._parked_first
            if not self._parked_first:
                return 0
        return min(free, max(calls.freed, 1))

    def _is_due(self, calls: Calls, slots: int) -> bool:
        """Whether the call has to be made now, with so many slots."""
        if calls.outbox.urgent or (calls.hungry and slots):
            return True
        if not calls.outbox.lazy:
            return False
        now = monotonic()
        if calls.lazy_since is None:
            calls.lazy_since = now
        left = calls.lazy_since + _LAZY - now
        if left > 0 and not self._timed:
            # Not by the timekeeper: its thread would take the interpreter from the loop for a moment, each time.
            self._timed = True
            self._loop.later(left, self.timer_ended)
        return left <= 0

    def timer_ended(self) -> None:
        """The time is up, or Celery has emptied the hub's timer since the broker connection was lost."""
        self._timed = False

    def start_granted(self) -> None:
        """Start those that have their permits, oldest first."""
        self._tell_begun(list(islice(self._granted, max(self._running.free_slots, 0))))
        while self._granted and self._running.free_slots > 0:
            self.start(self._granted.popleft())

    def _tell_begun(self, runs: list[Run]) -> None:
        """Send it before they begin: a body in this process may keep us from sending anything for longer than a lease.

        As with a message that the broker has, and which Celery acknowledges before the body begins.
        """
        begin = [run for run in runs if self._forgets_at_start(run)]
        for run in begin:
            self._running.tell_begun(run)
        for calls in {self._groups[run.group]: None for run in begin}:
            if calls.free:
                offers = calls.hungry and not self._held.waiting
                calls.send(max(self._running.free_slots - len(runs), 0) if offers else 0)

    def _forgets_at_start(self, run: Run) -> bool:
        """Whether the store has the message of a task that is acknowledged early, and that runs in this process."""
        return run.stored and self._slots.in_main_process and not run.request.task.acks_late
