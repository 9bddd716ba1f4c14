"""Celery signals for events of tasks and limits, sent at once::

    from celery_throttle.signals import task_parked

    @task_parked.connect
    def on_parked(sender, event, **kwargs):
        print(event.task_id, "waits for", *event.needs)

``sender`` is the name of the task, or of the limit where the event has no task name; ``event`` is a frozen dataclass.
In a worker all that a receiver raises is logged, ``SystemExit`` too, and stops neither tasks nor other receivers. But
Celery's ``WorkerShutdown`` and ``WorkerTerminate`` stop the worker.

Warning:
    A worker sends its signals in its main process, on the thread that starts tasks: a receiver that takes a second
    delays every start of that worker for a second. Only `lease_lost` has a thread of its own, so it is sent while the
    other one is blocked, too. A signal reports what this worker has done or seen. Signals that are due when a worker is
    killed are never sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery.utils.dispatch import Signal

from celery_throttle.store.needs import needs_from

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from celery_throttle.store.limit_status import RateStatus
    from celery_throttle.store.needs import Need

__all__ = [
    "DuplicateDropped",
    "LeaseLost",
    "LimitChanged",
    "PermitReclaimed",
    "TaskParked",
    "TaskResumed",
    "duplicate_dropped",
    "lease_lost",
    "limit_changed",
    "permit_reclaimed",
    "task_parked",
    "task_resumed",
    "tell_reclaimed",
]


@dataclass(frozen=True)
class TaskParked:
    """A task was parked, because no permit was free for it, or because of its identity lock.

    Attributes:
        task_id: id of the task.
        task_name: name of the task.
        queue: the queue of the task; workers of this queue resume it.
        needs: the permits that it waits for.
    """

    task_id: str
    task_name: str
    queue: str
    needs: tuple[Need, ...]


@dataclass(frozen=True)
class TaskResumed:
    """A parked task got its permits and starts in this worker.

    Attributes:
        task_id: id of the task.
        task_name: name of the task.
        queue: the queue of the task.
        needs: the permits that it has.
        waited: seconds since it came to a worker, or went back to the head of its line.
    """

    task_id: str
    task_name: str
    queue: str
    needs: tuple[Need, ...]
    waited: float


@dataclass(frozen=True)
class PermitReclaimed:
    """The lease of a lost worker's task has ended, and this process has freed its permits.

    Attributes:
        task_id: id of the task that held them.
        needs: the permits that are free now; none if the task only had an identity lock.
    """

    task_id: str
    needs: tuple[Need, ...]


@dataclass(frozen=True)
class LeaseLost:
    """A task still runs in this worker, but other tasks may have its permits: their lease was not renewed in time.

    Attributes:
        task_id: id of the task.
        task_name: name of the task.
        needs: the permits that it held; none if it only had an identity lock.
    """

    task_id: str
    task_name: str
    needs: tuple[Need, ...]


@dataclass(frozen=True)
class DuplicateDropped:
    """A task does not run, because another call of it has the identity lock.

    Attributes:
        task_id: id of the duplicate.
        task_name: name of the task.
        first_id: id of the task that has the lock.
        verdict: the end of the duplicate: ``raise`` or ``duplicate``, ``skip``, ``return``, ``replaced``.
    """

    task_id: str
    task_name: str
    first_id: str
    verdict: str


@dataclass(frozen=True)
class LimitChanged:
    """A limit was changed from this process.

    Attributes:
        limit: name of the limit.
        key: the changed key, None for the limit itself.
        action: ``override``, ``reset``, ``pause``, ``resume``, ``disable``, ``enable`` or ``release-hold``.
        permits: the permits of an override, None if it has none.
        by: author of the change.
        why: reason of the change.
        until: end of the change as it was given: a time, or seconds from now; None for no end.
        rates: the rates of an override, empty if it has none.
    """

    limit: str
    key: str | None
    action: str
    permits: int | None
    by: str
    why: str
    until: datetime | float | None
    rates: tuple[RateStatus, ...] = ()


def _signal(name: str) -> Any:
    return Signal(name=name, providing_args=["event"])


task_parked = _signal("task_parked")
task_resumed = _signal("task_resumed")
permit_reclaimed = _signal("permit_reclaimed")
lease_lost = _signal("lease_lost")
duplicate_dropped = _signal("duplicate_dropped")
limit_changed = _signal("limit_changed")


def _send(signal: Any, sender: str | None, event: object) -> None:
    signal.send(sender, event=event)


def tell_reclaimed(task_id: str, needs: str, send: Callable[[Any, str | None, object], None] = _send) -> None:
    """Send `permit_reclaimed` for the permits of a lost worker's task; ``send`` gets signal, sender and event."""
    event = PermitReclaimed(task_id, needs_from(needs))
    send(permit_reclaimed, event.needs[0].limit if event.needs else None, event)
