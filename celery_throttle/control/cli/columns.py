"""The columns of the tables, for each kind of row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_throttle.control.cli.layout import Column
from celery_throttle.control.cli.output import span, when
from celery_throttle.core.buckets import Bucket

if TYPE_CHECKING:
    from celery_throttle.control.pace import Pace
    from celery_throttle.control.reader import Reclaimed
    from celery_throttle.control.rows import Row
    from celery_throttle.store.holders import Holder
    from celery_throttle.store.needs import Need
    from celery_throttle.store.parked_tasks import Parked

__all__ = ["CHANGES", "DRAINED", "HOLDERS", "LIMITS", "PARKED", "RECLAIMED", "RUNNABLE", "parked"]


def _held(row: Row) -> str:
    status = row.status
    if row.keyed:
        each = "" if status.in_force is None else f"{status.in_force} each"
        if status.share and status.in_force is None:
            each = f"{status.share:.3g} of each worker"
        total = str(status.held_of_keys) if status.keys else ""
        return f"{total} ({each})" if total and each else total or each
    if status.bucket.is_open:
        return ""
    return str(status.held) if status.in_force is None else f"{status.held} of {status.in_force}"


def _parked(row: Row) -> str:
    if row.keyed:
        return str(row.status.parked_of_keys) if row.status.keys else ""
    return str(row.status.parked)


def _keys(row: Row) -> str:
    return str(row.status.keys) if row.keyed and row.status.keys else ""


def _needs(row: Holder | Reclaimed) -> str:
    return ", ".join(map(_need, row.needs)) or "no permit"


def _need(need: Need) -> str:
    times = f"{need.permits} x " if need.permits > 1 else ""
    return f"{times}{Bucket(need.limit, need.key)}"


def _known(count: int | None, *, at_least: bool = False) -> str:
    return "?" if count is None else f"{count}{'+' if at_least else ''}"


def _line(parked: Parked) -> object:
    return "" if parked.limit is None else Bucket(parked.limit, parked.key)


LIMITS = (
    Column("LIMIT", lambda row: row.status.bucket),
    Column("HELD", _held, right=True),
    Column("PARKED", _parked, right=True),
    Column("KEYS", _keys, right=True),
    Column("RATES", lambda row: ", ".join(rate.rate for rate in row.status.rates_in_force or row.status.rates)),
    Column("STATE", lambda row: "; ".join(each.text for each in row.states), folds=True),
)
HOLDERS = (
    Column("TASK", lambda row: row.task_id),
    Column("NAME", lambda row: row.task_name or ""),
    Column("HOLDS", _needs, folds=True),
    Column("WORKER", lambda row: row.worker),
    Column("SINCE", lambda row: when(row.since)),
    Column(
        "LEASE LEFT", lambda row: span(row.lease_left) if row.lease_left > 0 else f"ended {span(-row.lease_left)} ago"
    ),
    Column("QUEUE", lambda row: row.queue or ""),
    Column("STARTED BEFORE", lambda row: row.deliveries or "", right=True),
)
PARKED = (
    Column("PLACE", lambda row: row.place, right=True),
    Column("TASK", lambda row: row.task_id),
    Column("NAME", lambda row: row.task_name or ""),
    Column("LINE", _line),
    Column("SINCE", lambda row: when(row.since)),
    Column("QUEUE", lambda row: row.queue),
    Column("STARTED BEFORE", lambda row: row.deliveries or "", right=True),
)


def parked(pace: Pace) -> tuple[Column, ...]:
    """Return the columns of parked tasks in a line with this pace, with the estimated start of each task."""
    return (*PARKED, Column("STARTS IN ABOUT", lambda row: _about(pace.starts_in(row.place))))


def _about(seconds: float | None) -> str:
    return "" if seconds is None else span(seconds)


DRAINED = (
    Column("QUEUE", lambda row: row.queue),
    Column("TASKS", lambda row: row.tasks, right=True),
    Column("LEFT", lambda row: row.left, right=True),
    Column("OF ANOTHER BROKER", lambda row: row.elsewhere or "", right=True),
)
CHANGES = (
    Column("AT", lambda row: when(row.at)),
    Column("BY", lambda row: row.by),
    Column("WHAT", lambda row: row.what, folds=True),
    Column("WHY", lambda row: row.why, folds=True),
)
RECLAIMED = (Column("TASK", lambda row: row.task_id), Column("HELD", _needs, folds=True))
RUNNABLE = (
    Column("QUEUE", lambda row: row.queue),
    Column("RUNNABLE", lambda row: _known(row.runnable, at_least=row.at_least), right=True),
    Column("IN BROKER", lambda row: _known(row.messages), right=True),
    Column("RUNNING", lambda row: row.running, right=True),
    Column("READY", lambda row: _known(row.ready, at_least=row.at_least), right=True),
)
