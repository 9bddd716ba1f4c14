"""What code and monitors hear of a worker's tasks: signals, and events in a group of their own.

Not ``task-...``: monitors take whatever begins with that for a state of the task.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_throttle.core.buckets import Bucket
from celery_throttle.core.queues import BrokerQueue
from celery_throttle.signals import (
    DuplicateDropped,
    LeaseLost,
    TaskParked,
    TaskResumed,
    duplicate_dropped,
    lease_lost,
    task_parked,
    task_resumed,
)
from celery_throttle.store.needs import needs_from

if TYPE_CHECKING:
    from typing import Any

    from celery_throttle.worker.runs import Run

__all__ = ["limits_of", "queue_of", "tell_duplicate", "tell_lost", "tell_parked", "tell_resumed"]


def tell_parked(run: Run) -> None:
    """It has been set aside."""
    request = run.request
    if task_parked.receivers:
        event = TaskParked(request.id, request.name, queue_of(run), needs_from(run.needs.text))
        task_parked.send(request.name, event=event)
    if _is_watched(request):
        request.send_event("throttle-parked", name=request.name, queue=queue_of(run), limits=limits_of(run))


def tell_resumed(run: Run) -> None:
    """It starts."""
    request = run.request
    if task_resumed.receivers:
        event = TaskResumed(request.id, request.name, queue_of(run), needs_from(run.needs.text), run.waited)
        task_resumed.send(request.name, event=event)
    if _is_watched(request):
        request.send_event("throttle-resumed", name=request.name, waited=run.waited, limits=limits_of(run))


def tell_lost(run: Run, needs: str) -> None:
    """It runs, but its lease is lost."""
    request = run.request
    lease_lost.send(request.name, event=LeaseLost(request.id, request.name, needs_from(needs)))
    if _is_watched(request):
        request.send_event("throttle-lease-lost", name=request.name, limits=limits_of(run))


def tell_duplicate(request: Any, first: str, verdict: str) -> None:
    """It does not run, since another call has its lock."""
    event = DuplicateDropped(request.id, request.name, first, verdict)
    duplicate_dropped.send(request.name, event=event)
    request.send_event("throttle-duplicate", existing=first, name=request.name, verdict=verdict)


def _is_watched(request: Any) -> bool:
    return request.eventer is not None and request.eventer.enabled


def queue_of(run: Run) -> str:
    """Return the name of its queue, as the broker has it."""
    return BrokerQueue.parse(run.queue).name


def limits_of(run: Run) -> list[str]:
    """Return what it takes permits of, as it is shown."""
    return [str(Bucket.parse(each)) for each in run.needs.buckets]
