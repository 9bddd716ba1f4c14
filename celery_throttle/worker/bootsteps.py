"""The bootsteps that put the gate into a worker."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import __version__ as celery_version
from celery import bootsteps

from celery_throttle.core.store_url import shown
from celery_throttle.errors import ConfigurationError
from celery_throttle.settings import settings_of
from celery_throttle.store.servers.client import connection_factory
from celery_throttle.store.servers.doctor import refusal
from celery_throttle.tasks.one_line import in_one_line
from celery_throttle.tasks.registry import dedups_of, policies_of
from celery_throttle.worker.celery_side import outcomes, remember
from celery_throttle.worker.celery_side.locks_of_messages import free_locks
from celery_throttle.worker.celery_side.tasks import check_task
from celery_throttle.worker.celery_side.unthrottled import fail_rate_limited
from celery_throttle.worker.parked_leftovers import parked_tasks_left
from celery_throttle.worker.wiring import Throttling

if TYPE_CHECKING:
    from celery_throttle.core.settings import Settings

__all__ = ["ConsumerStep", "WorkerStep"]

logger = logging.getLogger(__name__)


def _refuse_unknown_celery(worker: Any) -> None:
    """Stop a worker whose Celery lacks attributes that the gate needs: unthrottled tasks would be worse."""
    missing = [name for name in ("_process_task", "process_task", "pool", "app", "hub") if not hasattr(worker, name)]
    if missing:
        raise ConfigurationError(
            f"celery_throttle cannot throttle on Celery {celery_version} (the worker has no {', '.join(missing)}): "
            f"install a Celery version that this release of celery-fair-throttle supports"
        )


def _refuse_unfit_store(settings: Settings) -> None:
    """Stop a worker whose store can never serve it: the worker would take tasks and start none of them."""
    make: Any = connection_factory(settings.url, settings.keys())
    if why := refusal(make()):
        raise ConfigurationError(f"The store {shown(settings.url)} {why}")


def _refuse_tasks(app: Any) -> None:
    """Stop a worker, if it throttles, with tasks that cannot be throttled or whose duplicates would wait for ever."""
    if not settings_of(app).enabled:
        return
    for name in sorted(policies_of(app).keys() | dedups_of(app).keys()):
        check_task(app.tasks[name])


class WorkerStep(bootsteps.StartStopStep):
    """Stands between the consumer and the pool."""

    requires = ("celery.worker.components:Pool",)

    @in_one_line()
    def include_if(self, worker: Any) -> bool:
        """Return whether there are tasks to throttle, or tasks that were parked before throttling was turned off."""
        ours = policies_of(worker.app).keys() | dedups_of(worker.app).keys()
        throttles = bool(ours) and (settings_of(worker.app).enabled or parked_tasks_left(worker.app))
        if ours and not throttles:
            logger.warning(
                "celery_throttle: throttle_enabled is False: %s without limits, rates and identity locks",
                "1 task runs" if len(ours) == 1 else f"{len(ours)} tasks run",
            )
            fail_rate_limited(*(worker.app.tasks[name] for name in ours))
        if not throttles:
            free_locks(worker.app)
        return throttles

    @in_one_line()
    def create(self, worker: Any) -> None:
        """Put the gate between the consumer and the pool."""
        _refuse_unknown_celery(worker)
        _refuse_tasks(worker.app)
        _refuse_unfit_store(settings_of(worker.app))
        worker.throttling = Throttling(worker)
        outcomes.keeping.begin(worker)  # before the pool forks its processes
        remember.reports.begin(worker)
        worker.process_task = worker.throttling.arrive
        if hasattr(worker, "wait_for_soft_shutdown"):  # since Celery 5.5
            worker.wait_for_soft_shutdown = partial(worker.throttling.wait_softly, worker.wait_for_soft_shutdown)

    def start(self, worker: Any) -> None:
        """Start the gate with the worker."""
        worker.throttling.start()

    def register_with_event_loop(self, worker: Any, hub: Any) -> None:  # noqa: ARG002  # Celery's signature
        """Register our sockets again, because the worker's hub starts over after each lost broker connection."""
        if not worker.throttling.loop.threaded:
            worker.throttling.loop.reattach()

    def close(self, worker: Any) -> None:
        """Start nothing more; Celery closes every step before it stops the first."""
        worker.throttling.close()

    def stop(self, worker: Any) -> None:
        """Handle the jobs that the pool dropped with the consumer; `ConsumerStep.shutdown` does the rest later."""
        worker.throttling.flushed()

    def terminate(self, worker: Any) -> None:
        """Do nothing: `ConsumerStep.shutdown` ends the gate here, too."""


class ConsumerStep(bootsteps.StartStopStep):
    """Calls the gate when the broker connection comes and goes."""

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, consumer: Any) -> bool:
        """Return whether the worker step is there."""
        return hasattr(consumer.controller, "throttling")

    def start(self, consumer: Any) -> None:
        """Connect the gate to the consumer, which consumes now."""
        throttling = consumer.controller.throttling
        throttling.loop.call(throttling.connected, consumer)

    def stop(self, consumer: Any) -> None:
        """Disconnect the gate if the consumer lost its connection, not if the worker stops."""
        if consumer.blueprint.state == bootsteps.RUN:  # type: ignore[attr-defined]
            throttling = consumer.controller.throttling
            throttling.loop.call(throttling.gate.disconnected)

    def shutdown(self, consumer: Any) -> None:
        """Finish the gate after all steps of the worker have stopped, the pool too."""
        consumer.controller.throttling.finish()
