"""Signals of Celery's kind, for code that wants to hear at once what becomes of tasks and limits::

    from celery_throttle.signals import task_parked

    @task_parked.connect
    def on_parked(sender, event, **kwargs):
        print(event.task_id, "waits for", *event.needs)

``sender`` is the name of the task, or of the limit where there is no task to name; ``event`` is a frozen dataclass. An
error in a receiver is logged and keeps nobody from anything.

Warning:
    Those of a worker come in its main process, on the thread that starts tasks: a receiver that takes a second holds up
    every start of that worker for a second. They tell what this worker knows; what was under way when it was killed is
    told by nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery.utils.dispatch import Signal

from celery_throttle.store.needs import needs_from

if TYPE_CHECKING:
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
    """A task has been set aside, since there was no permit for it, or because of its identity lock.

    Attributes:
        task_id: of the task.
        task_name: of the task.
        queue: it was taken from; whose workers resume it.
        needs: the permits that it waits for.
    """

    task_id: str
    task_name: str
    queue: str
    needs: tuple[Need, ...]


@dataclass(frozen=True)
class TaskResumed:
    """A parked task has its permits and starts in this worker.

    Attributes:
        task_id: of the task.
        task_name: of the task.
        queue: it was taken from.
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
    """The lease of a lost worker's task has ended, and this process has cleared what it held.

    Attributes:
        task_id: of the task that held them.
        needs: the permits that are free now; none for one that only had an identity lock.
    """

    task_id: str
    needs: tuple[Need, ...]


@dataclass(frozen=True)
class LeaseLost:
    """A task runs here still, but its permits were given to others: this worker could not renew them in time.

    Attributes:
        task_id: of the task.
        task_name: of the task.
        needs: the permits that it held; none if it only had an identity lock.
    """

    task_id: str
    task_name: str
    needs: tuple[Need, ...]


@dataclass(frozen=True)
class DuplicateDropped:
    """A task does not run, because another call of it has the identity lock.

    Attributes:
        task_id: of the duplicate.
        task_name: of the task.
        first_id: of the task that has the lock.
        verdict: what became of the duplicate: ``raise`` or ``duplicate``, ``skip``, ``return``, ``replaced``.
    """

    task_id: str
    task_name: str
    first_id: str
    verdict: str


@dataclass(frozen=True)
class LimitChanged:
    """Somebody has steered a limit from this process.

    Attributes:
        limit: its name.
        key: of which key, None for the limit itself.
        action: ``override``, ``reset``, ``pause``, ``resume``, ``disable``, ``enable`` or ``release-hold``.
        permits: of an override of permits, else None.
        by: who.
        why: in their words.
        until: as it was given: a moment, or seconds from now; None: until it is taken back.
        rates: of an override of rates, else none.
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


def tell_reclaimed(task_id: str, needs: str) -> None:
    """What a lost worker's task held is free."""
    event = PermitReclaimed(task_id, needs_from(needs))
    permit_reclaimed.send(event.needs[0].limit if event.needs else None, event=event)
