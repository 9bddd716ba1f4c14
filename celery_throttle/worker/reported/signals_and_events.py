"""Send signals and events about a worker's tasks.

The events have a group of their own, because monitors read each event ``task-...`` as a state of the task.
"""

from __future__ import annotations

import logging
from functools import partial
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
    tell_reclaimed,
)
from celery_throttle.store.needs import needs_from
from celery_throttle.worker.user_code import call

if TYPE_CHECKING:
    from typing import Any

    from celery_throttle.worker.runs import Run

__all__ = [
    "limits_of",
    "queue_of",
    "report_duplicate",
    "report_parked",
    "report_resumed",
    "send_lost",
    "send_lost_event",
    "send_reclaimed",
]

logger = logging.getLogger(__name__)


def _send(signal: Any, sender: str | None, event: object) -> None:
    """Send a signal as Celery does, which would let all but an `Exception` of a receiver end the caller's thread."""
    if not signal.receivers:
        return
    for receiver in signal._live_receivers(sender):  # noqa: SLF001
        try:
            call(partial(receiver, signal=signal, sender=sender, event=event))
        except Exception:
            logger.exception("celery_throttle: error in %r, a receiver of %s", receiver, signal.name)


def report_parked(run: Run) -> None:
    """Report a task that has been parked."""
    request = run.request
    if task_parked.receivers:
        event = TaskParked(request.id, request.name, queue_of(run), needs_from(run.needs.text))
        _send(task_parked, request.name, event)
    if _is_watched(request):
        request.send_event("throttle-parked", name=request.name, queue=queue_of(run), limits=limits_of(run))


def report_resumed(run: Run) -> None:
    """Report a parked task that starts."""
    request = run.request
    if task_resumed.receivers:
        event = TaskResumed(request.id, request.name, queue_of(run), needs_from(run.needs.text), run.waited)
        _send(task_resumed, request.name, event)
    if _is_watched(request):
        request.send_event("throttle-resumed", name=request.name, waited=run.waited, limits=limits_of(run))


def send_reclaimed(task: str, needs: str) -> None:
    """Send the signal for permits of a lost worker's task, which are free now."""
    tell_reclaimed(task, needs, _send)


def send_lost(run: Run, needs: str) -> None:
    """Send the signal for a running task whose lease is lost."""
    request = run.request
    _send(lease_lost, request.name, LeaseLost(request.id, request.name, needs_from(needs)))


def send_lost_event(run: Run) -> None:
    """Send the event for such a task."""
    request = run.request
    if _is_watched(request):
        request.send_event("throttle-lease-lost", name=request.name, limits=limits_of(run))


def report_duplicate(request: Any, first: str, verdict: str) -> None:
    """Report a task that does not run, because another call has its lock."""
    event = DuplicateDropped(request.id, request.name, first, verdict)
    _send(duplicate_dropped, request.name, event)
    request.send_event("throttle-duplicate", existing=first, name=request.name, verdict=verdict)


def _is_watched(request: Any) -> bool:
    return request.eventer is not None and request.eventer.enabled


def queue_of(run: Run) -> str:
    """Return the name of a run's queue at the broker."""
    return BrokerQueue.parse(run.queue).name


def limits_of(run: Run) -> list[str]:
    """Return the limits, with keys, that a run takes permits of, as text."""
    return [str(Bucket.parse(each)) for each in run.needs.buckets]
