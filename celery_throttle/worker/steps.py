"""The bootsteps that put the gate into a worker."""

from __future__ import annotations

import logging
import threading
import uuid
from functools import partial
from typing import Any

from celery import __version__ as celery_version
from celery import bootsteps
from celery.concurrency.solo import TaskPool as SoloPool
from celery.signals import task_revoked
from celery.worker import state
from kombu.asynchronous import Hub
from kombu.asynchronous.timer import Timer

from celery_throttle.errors import ConfigurationError
from celery_throttle.settings import settings_of
from celery_throttle.store.servers.doctor import findings
from celery_throttle.task import dedups_of, groups_of, terms_of
from celery_throttle.worker import remember
from celery_throttle.worker.autoscale import Growth
from celery_throttle.worker.gate import LOOK_EVERY, Gate
from celery_throttle.worker.group import Group
from celery_throttle.worker.leases import Leases
from celery_throttle.worker.left import anybody_left
from celery_throttle.worker.loop import Loop, start_thread
from celery_throttle.worker.queues import QueueMap
from celery_throttle.worker.requests import RequestFactory
from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["ConsumerStep", "WorkerStep"]

logger = logging.getLogger(__name__)

_REVOKED_EVERY = 1.0
_TEND_EVERY = 0.5


class Throttling:
    """Everything of ours in one worker, put together.

    Args:
        worker: Celery's WorkController, with its pool.
    """

    def __init__(self, worker: Any) -> None:
        self._worker = worker
        self.settings = settings = settings_of(worker.app)
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self._revoked: set[str] = set()
        self._requests: RequestFactory | None = None
        self.timekeeper = Timekeeper()
        self.gate = Gate(
            worker.pool, terms_of(worker.app), dedups_of(worker.app), settings, self.timekeeper, Growth(worker)
        )
        # A solo pool runs tasks in the thread that consumes, so there the gate must live in that thread too.
        self.pumped = worker.hub is None and isinstance(worker.pool, SoloPool)
        threaded = worker.hub is None and not self.pumped
        self._hub = worker.hub or Hub(Timer())
        self.loop = self.gate.loop = Loop(self._hub, self.gate.tick, threaded=threaded)
        if worker.hub is None:
            self.loop.reattach()  # else with the worker's event loop
        worker_id = uuid.uuid4().hex[:8]
        self.groups = [Group(name, self.gate, self.timekeeper, settings, worker_id) for name in groups_of(worker.app)]
        self.gate.leases = self._leases = Leases(self.groups, settings.lease, self.timekeeper, self._end_again)

    def start(self) -> None:
        """Begin."""
        url = self.settings.url
        found = {finding: None for group in self.groups for finding in findings(group.client, url)}
        for finding in found:
            logger.warning("celery_throttle: %s", finding)
        self._revoked = set(state.revoked)
        task_revoked.connect(self._never_runs, weak=False)
        self.timekeeper.start()
        self._leases.start()
        # A worker may be lost right after a look, and its permits must not idle long past their lease.
        self.timekeeper.every(min(LOOK_EVERY, self.settings.lease / 2), lambda: self.loop.post(self.gate.look_soon))
        self.timekeeper.every(_REVOKED_EVERY, lambda: self.loop.post(self._withdraw_revoked))
        self.timekeeper.every(_TEND_EVERY, lambda: self.loop.post(self.gate.tend_pool))
        for group in self.groups:
            group.connect()
        if self.loop.threaded:
            self._thread = start_thread(self._hub, self._stopped)

    def arrive(self, request: Any) -> None:
        """Take a request that the consumer would give to the pool."""
        self.gate.arrive(request)
        if self.pumped and not self.loop.turning:
            self.pump()

    def pump(self) -> None:
        """Turn a hub that nobody turns, until the store has nothing more to say; tasks run meanwhile, one by one."""
        self.loop.pump()
        while any(group.busy for group in self.groups) and not _stopping():
            self._hub.run_once()

    def connected(self, consumer: Any) -> None:
        """The consumer has its queues."""
        if self.pumped and "perform_pending_operations" not in vars(consumer):
            consumer.perform_pending_operations = partial(self._pump_too, consumer.perform_pending_operations)
        for name in ("add_task_queue", "cancel_task_queue"):
            if name not in vars(consumer):
                setattr(consumer, name, self._then_connected(consumer, getattr(consumer, name)))
        queues = QueueMap(consumer.task_consumer)
        for group in self.groups:
            group.ledger.consume(queues.names)
        if self._requests is None or self._requests.consumer is not consumer:
            self._requests = RequestFactory(consumer)
        self._requests.follow()
        self.gate.connected(consumer, queues, self._requests)

    def _then_connected(self, consumer: Any, change_queues: Any) -> Any:
        """Wrap what remote control calls to change the queues of a running worker."""

        def changed(*args: Any, **kwargs: Any) -> Any:
            result = change_queues(*args, **kwargs)
            self.loop.call(self.connected, consumer)
            return result

        return changed

    def _pump_too(self, perform_pending_operations: Any) -> None:
        perform_pending_operations()
        self.pump()

    def close(self) -> None:
        """The worker is about to stop: start nothing more."""
        self.loop.call(self.gate.close)
        if not self.loop.threaded:
            self.loop.detach()
            self.loop.turn()

    def finish(self) -> None:
        """The pool has stopped."""
        self.loop.post(self.gate.finish)
        if self._thread is not None:
            self.loop.post(self._stopped.set)
            self._thread.join(timeout=5.0)
            self.loop.detach()
        for group in self.groups:
            group.ledger.wait()
        task_revoked.disconnect(self._never_runs)
        remember.end()
        self.timekeeper.stop()
        for group in self.groups:
            group.close()
        self.loop.close()

    def _end_again(self, run: Any) -> None:
        self.loop.post(run.ledger.release, run.needs.pools, run.request.id, run.nonce, "done")

    def _never_runs(self, sender: Any = None, request: Any = None, terminated: bool = False, **_: Any) -> None:
        if not terminated:
            self.loop.post(self.gate.never_runs, sender, request)

    def _withdraw_revoked(self) -> None:
        # Looking at the whole set is cheap only while nothing was added to it.
        if len(state.revoked) != len(self._revoked):
            revoked = set(state.revoked)
            if new := sorted(revoked - self._revoked):
                self.gate.withdraw(new)
            self._revoked = revoked


def _stopping() -> bool:
    flags: tuple[object, ...] = (state.should_stop, state.should_terminate)
    return any(flag is not None and flag is not False for flag in flags)  # 0 is a status to stop with


def _refuse_unknown_celery(worker: Any) -> None:
    """Stop a worker whose Celery lacks what the gate hangs on: unthrottled tasks would be worse."""
    missing = [name for name in ("_process_task", "process_task", "pool", "app", "hub") if not hasattr(worker, name)]
    if missing:
        raise ConfigurationError(
            f"celery_throttle cannot throttle on Celery {celery_version} (the worker has no {', '.join(missing)}): "
            f"install a Celery version that this release of celery-fair-throttle supports"
        )


class WorkerStep(bootsteps.StartStopStep):
    """Stands between the consumer and the pool."""

    requires = ("celery.worker.components:Pool",)

    def include_if(self, worker: Any) -> bool:
        """Only where there is something to throttle, or something left of it."""
        ours = bool(terms_of(worker.app) or dedups_of(worker.app))
        return ours and (settings_of(worker.app).enabled or anybody_left(worker.app))

    def create(self, worker: Any) -> None:
        """Put the gate where the consumer hands over its requests."""
        _refuse_unknown_celery(worker)
        worker.throttling = Throttling(worker)
        if any(dedup.remember for dedup in dedups_of(worker.app).values()):
            remember.begin()  # now: the pool's processes are not there yet
        worker.process_task = worker.throttling.arrive

    def start(self, worker: Any) -> None:
        """Start with the worker."""
        worker.throttling.start()

    def register_with_event_loop(self, worker: Any, hub: Any) -> None:  # noqa: ARG002  # Celery's signature
        """The worker's hub starts over after each lost broker connection."""
        if not worker.throttling.loop.threaded:
            worker.throttling.loop.reattach()

    def close(self, worker: Any) -> None:
        """Celery closes every step before it stops the first."""
        worker.throttling.close()

    def stop(self, worker: Any) -> None:
        """The pool is still to finish its tasks, and the consumer step ends us after that."""

    def terminate(self, worker: Any) -> None:
        """As `stop`."""


class ConsumerStep(bootsteps.StartStopStep):
    """Tells the gate when the broker connection comes and goes."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, consumer: Any) -> bool:
        """Only together with the worker step."""
        return hasattr(consumer.controller, "throttling")

    def start(self, consumer: Any) -> None:
        """The consumer consumes."""
        throttling = consumer.controller.throttling
        throttling.loop.call(throttling.connected, consumer)

    def stop(self, consumer: Any) -> None:
        """The consumer lost its connection, or stops for good."""
        if consumer.blueprint.state == bootsteps.RUN:  # type: ignore[attr-defined]
            throttling = consumer.controller.throttling
            throttling.loop.call(throttling.gate.disconnected)

    def shutdown(self, consumer: Any) -> None:
        """All steps of the worker have stopped, the pool too."""
        consumer.controller.throttling.finish()
