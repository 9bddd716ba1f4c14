"""Send signals and events about a worker's tasks.

The events have a group of their own, because monitors read each event ``task-...`` as a state of the task.
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

__all__ = ["limits_of", "queue_of", "report_duplicate", "report_lost", "report_parked", "report_resumed"]


def report_parked(run: Run) -> None:
    """Report a task that has been parked."""
    request = run.request
    if task_parked.receivers:
        event = TaskParked(request.id, request.name, queue_of(run), needs_from(run.needs.text))
        task_parked.send(request.name, event=event)
    if _is_watched(request):
        request.send_event("throttle-parked", name=request.name, queue=queue_of(run), limits=limits_of(run))


def report_resumed(run: Run) -> None:
    """Report a parked task that starts."""
    request = run.request
    if task_resumed.receivers:
        event = TaskResumed(request.id, request.name, queue_of(run), needs_from(run.needs.text), run.waited)
        task_resumed.send(request.name, event=event)
    if _is_watched(request):
        request.send_event("throttle-resumed", name=request.name, waited=run.waited, limits=limits_of(run))


def report_lost(run: Run, needs: str) -> None:
    """Report a running task whose lease is lost."""
    request = run.request
    lease_lost.send(request.name, event=LeaseLost(request.id, request.name, needs_from(needs)))
    if _is_watched(request):
        request.send_event("throttle-lease-lost", name=request.name, limits=limits_of(run))


def report_duplicate(request: Any, first: str, verdict: str) -> None:
    """Report a task that does not run, because another call has its lock."""
    event = DuplicateDropped(request.id, request.name, first, verdict)
    duplicate_dropped.send(request.name, event=event)
    request.send_event("throttle-duplicate", existing=first, name=request.name, verdict=verdict)


def _is_watched(request: Any) -> bool:
    return request.eventer is not None and request.eventer.enabled


def queue_of(run: Run) -> str:
    """Return the name of a run's queue at the broker."""
    return BrokerQueue.parse(run.queue).name


def limits_of(run: Run) -> list[str]:
    """Return the limits, with keys, that a run takes permits of, as text."""
    return [str(Bucket.parse(each)) for each in run.needs.buckets]
