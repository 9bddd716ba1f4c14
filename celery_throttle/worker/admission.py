"""Decide which run gets a slot of the pool: an arrival, a run that waited here, one with permits, or a parked task.

A run that arrives takes a slot and asks the store for its permits, waits here for a slot, or is parked.
"""

from __future__ import annotations

from functools import partial
from itertools import islice
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery_throttle.core.facts import Result
from celery_throttle.errors import UnusableMessage
from celery_throttle.store.parcel import pack
from celery_throttle.worker.celery_side.failing import end_unstarted
from celery_throttle.worker.runs import UNDECIDED, Run, State
from celery_throttle.worker.user_code import WorkerStops, call, safely

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
    from celery_throttle.worker.runs import Run
    from celery_throttle.worker.store_side.calls import Calls
    from celery_throttle.worker.store_side.closed_buckets import ClosedBuckets

__all__ = ["Admission"]

#: Seconds for which rows that can wait are not sent: a permit that one run of this worker passed to the next, say.
_LAZY = 0.025
#: Seconds after which the broker may have delivered a message to another worker, too (its visibility timeout). Such a
#: message asks the store before it starts.
_FRESH = 5.0


class Admission:
    """Admits runs, or parks them, and offers the other slots to parked tasks; all on the loop.

    Args:
        slots: the slots of Celery's pool.
        tasks: the throttled tasks: their limits and locks.
        groups: the calls of each group, by its name.
        broker: delivers the requests.
        closed: buckets in which arrivals have to wait.
        held: holds runs that wait.
        backend: holds runs while the result backend is away.
        running: starts runs.
        outages: the outage of each group's store, by the group's name.
        loop: the loop that everything happens on.
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
        self._granted = running.granted
        self._parked_first = False
        self._timed = False  # whether a timer runs for rows that can wait

    @property
    def granted(self) -> list[Run]:
        """The runs that have their permits, and wait for a slot."""
        return list(self._granted)

    @property
    def decided(self) -> list[Run]:
        """The runs here that the store has granted or parked, or that it is deciding about."""
        return [*self._held.of(*UNDECIDED, State.SAVING), *self._granted]

    def arrive(self, request: Any) -> None:
        """Take a request that the consumer would give to the pool."""
        if self._stops():
            return
        if self._broker.queues is None:  # its ETA came after the connection was lost: the broker delivers it again
            self._running.forget(request)
            return
        try:
            run = call(self._tasks.run_of, request, self._broker.epoch, self._broker.queues)
        except WorkerStops:
            self._running.forget(request)  # the broker delivers it again
            return
        except Exception as error:  # noqa: BLE001 - the user's own functions raise anything
            self._backend.fail(self._tasks.unread(request, self._broker.epoch), error, self._arrive_again)
            return
        self.line_up(run)

    def _arrive_again(self, runs: list[Run]) -> None:
        for run in runs:
            self.arrive(run.request)

    def line_up(self, run: Run) -> None:
        """Let a run enter now, or have it wait for a slot."""
        # A run that has to be parked needs no slot. If it waited here, later arrivals elsewhere would overtake it.
        if self._has_to_wait(run) or (not self._held.waiting and self._running.free_for(run) > 0):
            self.enter(run)
        else:
            run.state = State.WAITING
            self._held.waiting.append(run)

    def enter(self, run: Run) -> None:
        """Start a run that needs no permit; others ask for their permits, or are parked."""
        if not self._stops():  # else the broker delivers it again
            self._backend.attempt(self._go_in, run)

    def _go_in(self, run: Run) -> None:
        if not run.guarded:
            self._running.execute(run)
        elif run.request.revoked():
            return
        elif run.late:
            end_unstarted(run.request)
        else:
            self._admit(run)

    def _admit(self, run: Run) -> None:
        calls, outage = self._groups[run.group], self._outages[run.group]
        run.nonce = run.nonce or calls.nonce()
        run.keeps = calls.saving is not None
        if not calls.link.up or outage.holds:
            outage.meet(run)  # behind the runs that came while the store was away, until the limits are declared
        elif self._has_to_wait(run):
            self.park(run)
        elif self._is_plain(run) and (permit := calls.outbox.take(run)) is not None:
            self._running.hold_permit(run, permit)
            self._running.execute(run)
        else:
            self._held.hold(run, State.ASKING)
            run.parcel = b""
            calls.outbox.arrived.append(run)

    def _has_to_wait(self, run: Run) -> bool:
        return self._closed.keep_waiting(run) and not run.asks

    def _is_plain(self, run: Run) -> bool:
        """Return whether the run may take the permit of a run with the same needs, without asking the store.

        Only numbers of permits may limit the run, and no other worker may have its message.
        """
        if run.stored or run.content.redelivered or run.asks or not self._tasks.is_plain(run):
            return False
        # A run with an ETA was in this worker for longer than `came` shows.
        return monotonic() - run.came < _FRESH and not run.content.had_eta

    def park(self, run: Run) -> None:
        """Have the store park a run."""
        try:
            run.parcel = pack(run.request.message)
        except UnusableMessage as error:
            # No worker could run this task later, so it must not wait for ever.
            self._backend.fail(run, UnusableMessage(f"Task {run.request.name}: {error}"))
            return
        self._held.hold(run, State.PARKING)
        run.asks = False
        self._groups[run.group].outbox.arrived.append(run)

    def close(self, bucket: str, calls: Calls) -> None:
        """Close a bucket that has a line or no room: park the runs that wait here for it, and pass no permit on."""
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
        """Have a run with permits start when there is a slot."""
        run.state = State.GRANTED
        self._granted.append(run)

    def resume(self, run: Run) -> None:
        """Start the run of a parked task, now or when there is a slot."""
        if self._running.room > 0 and not self._forgets_at_start(run):
            self.start(run)
        else:
            self.start_later(run)

    def forget(self) -> None:
        """Give back the permits of runs that have not started."""
        while self._granted:
            run = self._granted.popleft()
            run.state = State.GONE
            safely(partial(self._running.give_back, began=False), run, Result.NOTHING)

    def hand_out(self) -> None:
        """Send the calls that are due, and start the runs that have slots.

        Calls are built here alone. Before this the hub has made the acknowledgements of the last turn.
        """
        self._report_begun()
        self._send_due()
        self._start_granted()

    def _send_due(self) -> None:
        waiting, running = self._held.waiting, self._running
        if waiting or any(calls.hungry for calls in self._groups.values()):
            self._slots.others.wait()
        else:
            self._slots.others.wait_no_more()
        offers = {calls: self._offer(calls) for calls in self._groups.values() if calls.has_to_send}
        if not offers and not waiting:
            return
        reserved = sum(offers.values())
        while waiting and running.free_for(waiting[0]) - reserved > 0:
            self.enter(waiting.popleft())
        for calls, slots in offers.items():
            reserved -= slots
            if not waiting and self._broker.queues:
                slots = max(running.free_slots - reserved, 0)  # noqa: PLW2901 - no run here waits for them
            if self._is_due(calls, slots):
                calls.send(slots)

    def _offer(self, calls: Calls) -> int:
        """Return the number of slots that the next call offers to parked tasks, even if runs wait here for slots."""
        free = self._running.free_slots
        if self._broker.queues is None or not (calls.hungry or calls.freed) or free <= 0:
            return 0
        if self._held.waiting:
            # Parked tasks and the runs that wait here take turns, so that neither starves.
            self._parked_first = not self._parked_first
            if not self._parked_first:
                return 0
        return min(free, max(calls.freed, 1))

    def _is_due(self, calls: Calls, slots: int) -> bool:
        """Return whether the call has to be sent now, with so many slots."""
        if calls.outbox.urgent or calls.sifting.pending or calls.hint_due or (calls.hungry and slots):
            return True
        if not calls.outbox.lazy:
            return False
        now = monotonic()
        if calls.lazy_since is None:
            calls.lazy_since = now
        left = calls.lazy_since + _LAZY - now
        if left > 0 and not self._timed:
            # Not by the timekeeper, whose thread would take the interpreter from the loop for a moment each time.
            self._timed = True
            self._loop.later(left, self.timer_ended)
        return left <= 0

    def timer_ended(self) -> None:
        """Note that no timer runs: its time is up, or Celery emptied the hub's timer after a lost broker connection."""
        self._timed = False

    def _start_granted(self) -> None:
        """Start the runs that have their permits, oldest first."""
        while self._granted and self._running.room_for_granted > 0:
            self.start(self._granted.popleft())

    def _report_begun(self) -> None:
        """Report that runs begin before their bodies do, which may block the loop for longer than a lease.

        The store then drops their messages, as the broker drops a message that Celery acknowledges before the body.
        """
        for run in islice(self._granted, max(self._running.room_for_granted, 0)):
            if self._forgets_at_start(run):
                self._running.report_begun(run)

    def _forgets_at_start(self, run: Run) -> bool:
        """Return whether the store has the message of an early-acknowledged task whose body runs in this process."""
        return run.stored and self._slots.in_main_process and not run.request.task.acks_late
