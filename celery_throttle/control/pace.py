"""Estimate the pace of a line, by the rates of its limit or by its history, and explain a task with its start."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from celery_throttle.control.reader import MOST
from celery_throttle.core.history import MINUTES
from celery_throttle.core.wording import span
from celery_throttle.store.explain import Explanation, dropped_before, explained, with_lost_run
from celery_throttle.store.limit_status import starts_per_second

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_throttle.control.reader import Reader
    from celery_throttle.store.history import History
    from celery_throttle.store.limit_status import LimitStatus

__all__ = ["ENOUGH_RUNS", "Pace", "explain", "pace_in", "pace_of"]

#: A line without a start for this many run times, and this many seconds, does not move.
_RUN_TIMES, _STANDS_STILL = 4, 120.0
#: The least number of runs for a mean run time.
ENOUGH_RUNS = 3


@dataclass(frozen=True)
class Pace:
    """The pace of a line.

    ``first``: the seconds until its first task starts; None if they are not known. ``each``: the seconds from each
    start to the next. ``by_rate``: whether a rate alone decides the pace. ``idle``: the seconds without a start, if
    they are too many for an estimate; else None.
    """

    first: float | None = None
    each: float = 0.0
    by_rate: bool = False
    idle: float | None = None

    def starts_in(self, place: int) -> float | None:
        """Return the estimated seconds until the task at this place starts, None if they are not known."""
        return None if self.first is None else self.first + (place - 1) * self.each


def pace_of(status: LimitStatus, history: History, cost: int = 1) -> Pace:
    """Return the pace of the line of a limit, or of one key of it, if each task takes ``cost`` permits.

    By Little's law, the runs that end each second are the present runs divided by the run time; a full limit starts as
    many. This estimate holds from the first runs on. A mean of starts takes minutes to follow a burst.

    ``history``: that of the limit by minutes; there is none for a key.
    """
    if status.stopped:
        return Pace()
    slowest = starts_per_second(status.rates_in_force) / cost
    if status.next_start_in > 0 and status.has_room(cost):
        return Pace(status.next_start_in, 1 / slowest, by_rate=True)
    if status.key is not None:
        return Pace()
    run_time, idle = history.run_time, history.idle
    if idle is not None and idle > max(_STANDS_STILL, _RUN_TIMES * (run_time or 0.0)):
        return Pace(idle=idle)
    if status.in_force is not None and status.held and run_time and history.ended >= ENOUGH_RUNS:
        per_second = status.held / cost / run_time
    else:
        per_second = history.per_second
    each = 1 / min(per_second, slowest) if per_second else None
    return Pace(each, each or 0.0)


def pace_in(reader: Reader, status: LimitStatus, cost: int = 1) -> Pace:
    """Return the pace of the line of a limit or key, if each of its tasks takes ``cost`` permits."""
    return pace_of(status, reader.histories([status.name], MINUTES)[0], cost)


def _estimated(explanation: Explanation, pace: Pace) -> Explanation:
    """Return the explanation with the estimated start of the task, if its line moves at this pace."""
    if explanation.place is None or any(each.stopped for each in explanation.limits):
        return explanation
    starts_in = pace.starts_in(explanation.place)
    if starts_in is not None:
        moves = "At the rate of its limit" if pace.by_rate else "As fast as its line moves now,"
        estimate = f"{moves} its turn comes in about {span(starts_in)}."
    elif pace.idle is not None:
        estimate = (
            f"Nothing has started on limit {explanation.limit} for {span(pace.idle)}: when its turn comes is not known."
        )
    else:
        return explanation
    return replace(explanation, starts_in=starts_in, reasons=(*explanation.reasons, estimate))


def explain(readers: Sequence[Reader], task_id: str) -> Explanation:
    """Return the explanation of a task; ``readers``: one for each group of limits."""
    views = [(reader.explain(task_id), reader) for reader in readers]
    found = [(explained(task_id, view), view, reader) for view, reader in views]
    explanation, view, reader = next((each for each in found if each[0].state != "unknown"), found[0])
    if explanation.state == "unknown" or view.verdict:
        explanation = with_lost_run(explanation, [run for each in readers for run in each.lost_runs()])
    if explanation.state == "unknown":
        explanation = dropped_before(explanation, [one for each in readers for one in each.audit(None, MOST)])
    status = next((each for each in view.limits if each.bucket == explanation.bucket), None)
    if status is None:
        return explanation
    cost = next(need.permits for need in view.needs if need.bucket == status.bucket)
    return _estimated(explanation, pace_in(reader, status, cost))
