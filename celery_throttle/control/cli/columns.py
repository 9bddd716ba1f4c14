"""What the tables show of each kind of row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_throttle.control.cli.layout import Column
from celery_throttle.control.cli.output import span, when
from celery_throttle.control.states import states
from celery_throttle.core.buckets import Bucket

if TYPE_CHECKING:
    from collections.abc import Container, Iterable

    from celery_throttle.control.pace import Pace
    from celery_throttle.control.reader import Reclaimed
    from celery_throttle.store.rows import Holder, LimitStatus, Need, Parked

__all__ = ["CHANGES", "DRAINED", "HOLDERS", "LIMITS", "PARKED", "RECLAIMED", "RUNNABLE", "limits", "parked"]


def limits(rows: Iterable[LimitStatus], with_keys: Container[str]) -> list[tuple[LimitStatus, bool]]:
    """Return what `LIMITS` shows: how limits stand, each with whether it is only what its keys have in common."""
    return [(row, row.key is None and row.name in with_keys) for row in rows]


def _held(row: tuple[LimitStatus, bool]) -> str:
    status, common = row
    if common:  # holders and lines are those of the keys
        return "" if status.in_force is None else f"{status.in_force} each"
    return str(status.held) if status.in_force is None else f"{status.held} of {status.in_force}"


def _needs(row: Holder | Reclaimed) -> str:
    return ", ".join(map(_need, row.needs)) or "no permit"


def _need(need: Need) -> str:
    times = f"{need.permits} x " if need.permits > 1 else ""
    return f"{times}{Bucket(need.limit, need.key)}"


def _known(count: int | None) -> object:
    return "?" if count is None else count


def _line(parked: Parked) -> object:
    return "" if parked.limit is None else Bucket(parked.limit, parked.key)


LIMITS = (
    Column("LIMIT", lambda row: Bucket(row[0].name, row[0].key)),
    Column("HELD", _held, right=True),
    Column("PARKED", lambda row: "" if row[1] else row[0].parked, right=True),
    Column("RATES", lambda row: ", ".join(rate.rate for rate in row[0].rates_in_force or row[0].rates)),
    Column("STATE", lambda row: "; ".join(each.text for each in states(row[0])), folds=True),
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
    """Return what is shown of parked tasks whose line moves at this pace: with when each starts, about."""
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
    Column("RUNNABLE", lambda row: f"{_known(row.runnable)}{'+' if row.at_least else ''}", right=True),
    Column("IN BROKER", lambda row: _known(row.messages), right=True),
    Column("RUNNING", lambda row: row.running, right=True),
    Column("READY", lambda row: row.ready, right=True),
)
