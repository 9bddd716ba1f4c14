"""How fast the line of a limit moves: by its rates, or by what was counted of it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from celery_throttle.control.limit_history import histories_of
from celery_throttle.core.history import MINUTES
from celery_throttle.core.wording import span

if TYPE_CHECKING:
    from celery_throttle.control.reader import Reader
    from celery_throttle.store.explain import Explanation
    from celery_throttle.store.history import History
    from celery_throttle.store.limit_status import LimitStatus

__all__ = ["ENOUGH_RUNS", "Pace", "estimated", "pace_in", "pace_of"]

#: A line in which nothing has started for so many run times, and so many seconds, stands still.
_RUN_TIMES, _STANDS_STILL = 4, 120.0
#: Runs that tell how long one takes.
ENOUGH_RUNS = 3


@dataclass(frozen=True)
class Pace:
    """How fast a line moves.

    Attributes:
        first: seconds until its first task starts; None if that is not known.
        each: seconds from then to the next start, and so on.
        by_rate: whether a rate alone decides that.
        idle: seconds for which nothing has started, where that is too long to say more; else None.
    """

    first: float | None = None
    each: float = 0.0
    by_rate: bool = False
    idle: float | None = None

    def starts_in(self, place: int) -> float | None:
        """Return in about how many seconds the task at this place starts, None if it is not known."""
        return None if self.first is None else self.first + (place - 1) * self.each


def pace_of(status: LimitStatus, history: History, cost: int = 1) -> Pace:
    """Return how fast the line of a limit, or of one key of it, moves.

    By Little's law as many end a second as run, divided by how long they run; a full limit starts as many. That holds
    from the first runs on, while an average of starts takes minutes to follow a burst.

    Args:
        status: how it stands.
        history: what was counted of the limit, minute by minute; of one key nothing is.
        cost: the permits that each task takes.
    """
    if status.stopped:
        return Pace()
    slowest = min((rate.per_second for rate in status.rates_in_force), default=float("inf")) / cost
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
    """Return how fast the line of a limit or key moves, where each of its tasks takes so many permits."""
    return pace_of(status, histories_of(reader, [status.name], MINUTES)[0], cost)


def estimated(explanation: Explanation, pace: Pace) -> Explanation:
    """Return the same with when it starts, where its line moves at this pace."""
    if explanation.place is None or any(each.stopped for each in explanation.limits):
        return explanation
    starts_in = pace.starts_in(explanation.place)
    if starts_in is not None:
        moves = "At the rate of its limit" if pace.by_rate else "As fast as its line moves now,"
        said = f"{moves} its turn comes in about {span(starts_in)}."
    elif pace.idle is not None:
        said = (
            f"Nothing has started on limit {explanation.limit} for {span(pace.idle)}: when its turn comes is not known."
        )
    else:
        return explanation
    return replace(explanation, starts_in=starts_in, reasons=(*explanation.reasons, said))
