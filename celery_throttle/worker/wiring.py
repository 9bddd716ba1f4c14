"""Connect all parts of the gate in one worker with Celery's worker and each other."""

from __future__ import annotations

from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from celery.concurrency.solo import TaskPool as SoloPool
from celery.signals import task_rejected, task_revoked, task_unknown
from celery.worker import state
from kombu.asynchronous import Hub
from kombu.asynchronous.timer import Timer

from celery_throttle.core.naming import worker_name
from celery_throttle.core.sites import WORKER, Sites
from celery_throttle.settings import settings_of
from celery_throttle.store.scripts import Script
from celery_throttle.tasks.registry import groups_of
from celery_throttle.worker.celery_side import blocking, outcomes, remember
from celery_throttle.worker.celery_side.autoscale import Autoscaling
from celery_throttle.worker.celery_side.locks_of_messages import free_lock, lock_in
from celery_throttle.worker.celery_side.slots import Slots
from celery_throttle.worker.celery_side.soft_shutdown import is_interrupted_wait
from celery_throttle.worker.celery_side.tasks import Tasks
from celery_throttle.worker.ended_bodies import EndedBodies
from celery_throttle.worker.gate import LOOK_EVERY, Gate
from celery_throttle.worker.groups import Group, calls_of
from celery_throttle.worker.loop import Loop
from celery_throttle.worker.reported.paced_log import PacedLog
from celery_throttle.worker.reported.report import report
from celery_throttle.worker.reported.startup_log import greet
from celery_throttle.worker.stopping import Stopping
from celery_throttle.worker.store_side.leases import Leases
from celery_throttle.worker.timekeeper import Timekeeper

if TYPE_CHECKING:
    from collections.abc import Callable


__all__ = ["Throttling"]

_REVOKED_EVERY = 1.0
_TEND_EVERY = 0.5
#: Seconds that a solo worker waits for the broker's messages between two parked tasks.
_IN_PASSING = 0.001
#: The most seconds that the gate goes on between two of kombu's attempts to connect to the broker.
_NO_BROKER_TURNS = 1.0
#: The most seconds that a stopping worker waits until its loop has left the pool's results to Celery.
_LEAVE = 5.0


class Throttling:
    """The gate with all its parts in one worker.

    Args:
        worker: Celery's WorkController, with its pool.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.settings = settings = settings_of(worker.app)
        self.timekeeper = timekeeper = Timekeeper()
        # A solo pool runs tasks in the thread that consumes, so there the gate must live in that thread too.
        self.pumped = worker.hub is None and isinstance(worker.pool, SoloPool)
        threaded = worker.hub is None and not self.pumped
        self._hub = worker.hub or Hub(Timer())
        self.loop = loop = Loop(self._hub, threaded=threaded)
        if worker.hub is None:
            self.loop.reattach()  # else the worker's event loop does that
        name = worker_name(worker.hostname)
        self._slots, names = Slots(worker.pool), groups_of(worker.app)
        sites = Sites(settings.sites | {WORKER: worker.hostname}, lambda: self._slots.size)
        free = partial(free_lock, worker.app)
        self._log = log = PacedLog(timekeeper)
        self._tasks = tasks = Tasks(worker.app, settings, sites, names, free)
        make_calls = partial(
            calls_of, settings=settings, tasks=tasks, worker=name, loop=loop, timekeeper=timekeeper, log=log
        )
        self.gate = Gate(self._slots, tasks, settings, loop, timekeeper, names, make_calls, Autoscaling(worker), log)
        self.groups = [Group(calls, settings) for calls in self.gate.groups]
        self._stopping = Stopping(loop, self.gate, settings.lease)
        ended = EndedBodies(self._slots, settings.lease)
        self._leases = Leases(self.groups, settings.lease, timekeeper, self.gate.blocked, ended, log)

    def start(self) -> None:
        """Start the threads, connections and periodic calls."""
        Script.load_gate()
        greet(self._worker.app, self.settings, self.groups)
        self._slots.watch(self.loop.wake)
        if self._slots.is_green:
            blocking.sleep_without_blocking()
        # Celery before 5.7 takes the bound methods of two workers for one receiver.
        task_revoked.connect(self._never_runs, weak=False, dispatch_uid=str(id(self)))
        for signal in (task_unknown, task_rejected):
            signal.connect(self._is_unknown, weak=False, dispatch_uid=str(id(self)))
        self.timekeeper.start()
        self._leases.start()
        # A worker may be lost right after a look, and its permits must not idle long past their lease.
        self.timekeeper.every(min(LOOK_EVERY, self.settings.lease / 2), lambda: self.loop.post(self.gate.look_soon))
        self.timekeeper.every(_REVOKED_EVERY, lambda: self.loop.post(self.gate.withdraw_revoked))
        self.timekeeper.every(_TEND_EVERY, lambda: self.loop.post(self.gate.tend_pool))
        for group in self.groups:
            group.calls.connect()
        self.loop.start()

    def report(self) -> dict[str, Any]:
        """Return the state of this worker that no other program can see; on the loop."""
        return report(self.gate, self._slots, self.settings)

    def check(self, task: Any) -> None:
        """Refuse a task that this worker cannot throttle, see `Tasks.check`."""
        self._tasks.check(task)

    @property
    def arrive(self) -> Callable[[Any], None]:
        """The function that takes a request which the consumer would give to the pool."""
        return self._arrive_and_pump if self.pumped else self.gate.arrive

    def _arrive_and_pump(self, request: Any) -> None:
        self.gate.arrive(request)
        # Celery's timer, which delivers tasks with an ETA, has a thread of its own here; the consumer pumps soon.
        if not self.loop.turning and not self.loop.is_elsewhere:
            self.pump()

    def pump(self) -> None:
        """Turn the hub of a solo worker until no call to the store is left; parked tasks run in these turns."""
        if self.loop.threaded:  # the worker is closing
            return
        self.loop.pump()
        while any(group.busy for group in self.groups) and not _stopping():
            self._hub.run_once()

    def connected(self, consumer: Any) -> None:
        """Connect the gate to a consumer that has its queues."""
        if self.pumped:
            self._pump_with(consumer)
        if not self.loop.threaded:
            blocking.between_attempts(self._turn_without_broker)
        for name in ("add_task_queue", "cancel_task_queue"):
            if name not in vars(consumer):
                setattr(consumer, name, self._then_connected(consumer, getattr(consumer, name)))
        self.gate.connected(consumer)

    def _turn_without_broker(self) -> None:
        """Read the ends of bodies, and report them to the store, on a hub of ours: the worker's takes no turn now."""
        if self.loop.threaded:  # the worker is closing
            return
        results, hub, until = self._slots.results(self._hub), Hub(Timer()), monotonic() + _NO_BROKER_TURNS
        try:
            self.loop.move(hub)
            results.read_on(hub)
            self.gate.timer_lost()
            self.loop.pump()
            while (results.half_read or any(group.busy for group in self.groups)) and monotonic() < until:
                hub.run_once()
        finally:
            self.loop.move(self._hub)  # first: an error must not leave the gate on a hub that takes no more turns
            self.gate.timer_lost()
            results.leave(hub)
            hub.close()

    def _then_connected(self, consumer: Any, change_queues: Any) -> Any:
        """Wrap a function by which remote control changes the queues of a running worker."""

        def changed(*args: Any, **kwargs: Any) -> Any:
            result = change_queues(*args, **kwargs)
            self.loop.call(self.connected, consumer)
            return result

        return changed

    def _pump_with(self, consumer: Any) -> None:
        """Pump in each turn of Celery's loop, and make its turns short while there is work to do."""
        connection = consumer.connection
        if "perform_pending_operations" not in vars(consumer):
            consumer.perform_pending_operations = partial(self._pump_too, consumer.perform_pending_operations)
        if "drain_events" not in vars(connection):
            connection.drain_events = partial(self._drain, connection.drain_events)

    def _pump_too(self, perform_pending_operations: Any) -> None:
        perform_pending_operations()
        self.pump()

    def _drain(self, drain_events: Any, timeout: float | None = None, **kwargs: Any) -> Any:
        # The end of a parked task is posted; the next one starts when that end was sent to the store.
        return drain_events(timeout=_IN_PASSING if self.loop.posted else timeout, **kwargs)

    def close(self) -> None:
        """Start nothing more, because the worker is about to stop."""
        self.loop.call(self.gate.close)
        self.loop.detach()
        self._stopping.closed()

    def wait_softly(self, wait: Callable[[], None]) -> None:
        """Start nothing more, and go on freeing permits, while Celery's soft shutdown sleeps in its signal handler.

        Args:
            wait: sleeps.
        """
        softly = (self._worker.app.conf.get("worker_soft_shutdown_timeout") or 0) > 0
        if not softly or self.pumped:  # the handler has interrupted the only body
            wait()
        elif self.loop.threaded:
            self.loop.post(self.gate.close)  # no wait here: with gevent the handler may run in its hub
            wait()
        elif is_interrupted_wait(self._hub):
            self.close()
            self._read_results(wait)
        else:
            wait()

    def _read_results(self, wait: Callable[[], None]) -> None:
        """Read the pool's results on the gate's loop, until Celery goes on or a second signal cancels the tasks."""
        consumer, loop, results = self._worker.consumer, self.loop, self._slots.results(self._hub)

        def leave() -> None:
            loop.post(results.leave, loop.hub)
            loop.wait(lambda: True, _LEAVE)

        def then(cancel: Callable[[], None]) -> None:
            leave()
            cancel()

        consumer.cancel_active_requests = partial(then, consumer.cancel_active_requests)
        loop.post(results.read_on, loop.hub)
        try:
            wait()
        finally:
            leave()

    def flushed(self) -> None:
        """Handle the jobs that the pool dropped before any process began them; the pool finishes the rest."""
        self._stopping.flushed()

    def finish(self) -> None:
        """Report the rest and end all parts, after the pool has stopped."""
        self._slots.outlast()  # not on the loop, which handles the ends of these tasks
        self.loop.detach()  # if the worker ended without a close
        self._stopping.finish()
        task_revoked.disconnect(self._never_runs, dispatch_uid=str(id(self)))
        for signal in (task_unknown, task_rejected):
            signal.disconnect(self._is_unknown, dispatch_uid=str(id(self)))
        blocking.no_more(self._turn_without_broker)
        remember.reports.end(self._worker)
        outcomes.keeping.end(self._worker)
        self.timekeeper.stop()
        self._log.close()
        for group in self.groups:
            group.close()
        self.loop.close()

    def _never_runs(self, sender: Any = None, request: Any = None, **_: Any) -> None:
        if request.hostname == self._worker.hostname:  # a test may have several workers in one process
            self.loop.post(self.gate.never_runs, sender, request)

    def _is_unknown(self, sender: Any, message: Any, **_: Any) -> None:
        if sender.controller is self._worker and (found := lock_in(message)) is not None:
            self.loop.post(self.gate.free_lock, *found)


def _stopping() -> bool:
    flags: tuple[object, ...] = (state.should_stop, state.should_terminate)
    return any(flag is not None and flag is not False for flag in flags)  # 0 is a status to stop with
