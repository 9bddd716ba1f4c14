"""Find the reason why tasks of a limit with room wait: another limit, or a missing worker."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery_throttle.control.reader import readers
from celery_throttle.core.naming import is_outside
from celery_throttle.core.wording import counted, one_line
from celery_throttle.store.limit_status import State
from celery_throttle.store.standing import refusals

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_throttle.control.reader import Reader
    from celery_throttle.core.buckets import Bucket
    from celery_throttle.store.limit_status import LimitStatus
    from celery_throttle.store.parked_tasks import First
    from celery_throttle.store.task_view import TaskView

__all__ = ["keeps", "oldest_lines", "reasons"]

#: Seconds after which a task that could start is checked again: a worker with a slot takes one in a tenth.
_AGAIN = 0.25
_NO_WORKER = "no-worker"


def keeps(status: LimitStatus) -> bool:
    """Return whether the limit or key itself keeps tasks from starting: then its own states name the reason."""
    return any(refusals(status))


def reasons(app: Any, statuses: Iterable[LimitStatus], most: int | None = None) -> dict[Bucket, State]:
    """Return the reason why tasks wait, for each line whose limit has room.

    Args:
        app: the Celery app.
        statuses: the status of the limits and keys.
        most: the most lines to check; the state of each other line is "not looked at".
    """
    waiting = [each for each in statuses if each.parked and not keeps(each)]
    found = {each.bucket: State("unread", "not looked at") for each in waiting}
    waiting = waiting[:most]
    found |= _looked(app, waiting)
    again = [each for each in waiting if found[each.bucket].kind == _NO_WORKER]
    if again:
        time.sleep(_AGAIN)
        found |= _looked(app, again)
    return found


def oldest_lines(app: Any, limits: list[str]) -> dict[str, LimitStatus]:
    """Return the line of the oldest task of each limit, of all keys."""
    found: dict[str, LimitStatus] = {}
    for reader in readers(app):
        lines = {limit: each.bucket for limit, each in reader.oldest(limits).items()}
        statuses = reader.stand([each.text for each in lines.values()])
        found |= dict(zip(lines, statuses, strict=True))
    return found


def _looked(app: Any, waiting: list[LimitStatus]) -> dict[Bucket, State]:
    found = {each.bucket: State("elsewhere", "its tasks wait in other lines") for each in waiting}
    for reader in readers(app) if waiting else ():
        firsts = reader.firsts([each.bucket for each in waiting])
        found |= {
            each.bucket: _reason(reader, each, first)
            for each, first in zip(waiting, firsts, strict=True)
            if first is not None  # None: a limit of another group, or its tasks wait in other lines
        }
    return found


def _reason(reader: Reader, status: LimitStatus, first: First) -> State:
    view = reader.explain(first.task_id)
    if view.state != "parked":
        return State("moving", "its first task has just left the line")
    return _of_view(status, view)


def _of_view(status: LimitStatus, view: TaskView) -> State:
    if view.settling:
        return State("settling", "nothing starts: the store has lost its data")
    costs = {need.bucket: need.permits for need in view.needs}
    others = (each for each in view.limits if each.bucket != status.bucket)
    other = next((each for each in others if any(refusals(each, costs.get(each.bucket, 1)))), None)
    if other is not None:
        return State("elsewhere", f"its first task waits for {other.bucket}")
    cost = costs.get(status.bucket, 1)
    if not status.has_room(cost):
        return State("full", f"its first task needs {counted(cost, 'permit')}")
    if view.service:
        return State(_NO_WORKER, f"no worker takes it: it needs one of broker {one_line(view.service)}")
    if is_outside(view.queue):
        return State(_NO_WORKER, "the process that waits for the permit does not take it")
    return State(_NO_WORKER, f"no worker takes it (queue {one_line(view.queue)})")
