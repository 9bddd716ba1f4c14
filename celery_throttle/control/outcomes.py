"""Compare numbers of a limit: what tasks meet with them, under the same load."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import TYPE_CHECKING

from celery_throttle.control.simulation import starts_of, typical
from celery_throttle.core.rates import Rate
from celery_throttle.core.wording import often, span
from celery_throttle.store.limit_status import permits_taken, rates_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_throttle.control.overrides import Numbers
    from celery_throttle.control.simulation import Load, Tasks
    from celery_throttle.store.limit_status import RateStatus

__all__ = ["HEADINGS", "Outcome", "compared", "outcome_of"]

#: The highest number that is tried for a target.
_MOST_NUMBER = 10**6
#: The headings of `Outcome.cells`.
HEADINGS = ("OUTCOME", "PERMITS", "RATE", "WAITED", "MEAN", "P50", "P95", "MOST", "USED", "LINE", "LINE GONE")
_WHAT = {
    "measured": "measured",
    "check": "the same, simulated",
    "asked": "asked",
    "fewer": "-25%",
    "more": "+25%",
    "least": "least for the target",
}


@dataclass(frozen=True)
class Outcome:
    """What tasks meet with these numbers, measured or simulated; all times are in seconds.

    Attributes:
        what: ``"measured"`` (the counts of the last hour), ``"check"`` (the same hour with the present numbers),
            ``"asked"``, ``"fewer"``, ``"more"`` or ``"least"`` (the least number that meets the target).
        permits: the permits; None: any number.
        rates: the rates.
        arrived: the number of tasks, with those that were parked at the beginning.
        started: the number of tasks that started.
        waiting: the number of tasks in the line at the end.
        waited: the share of the tasks that waited, 0 to 1.
        wait_mean: the mean wait, also of tasks that start after the end; None without tasks.
        wait_p50: the wait within which half of the tasks start; measured waits are rounded up as in `History`.
        wait_p95: the wait within which 95 % of the tasks start.
        wait_most: the longest wait.
        used: the mean number of permits in use.
        gone_in: the seconds until the line of the beginning is gone; None: not within the time, or measured.
        never: the reason why the line is never gone for good; "" if there is none.
    """

    what: str
    permits: int | None
    rates: tuple[RateStatus, ...]
    arrived: int
    started: int
    waiting: int
    waited: float
    wait_mean: float | None
    wait_p50: float | None
    wait_p95: float | None
    wait_most: float | None
    used: float
    gone_in: float | None = None
    never: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        """Its texts for a table, below `HEADINGS`."""
        waits = (self.wait_mean, self.wait_p50, self.wait_p95, self.wait_most)
        return (
            _WHAT[self.what],
            "any" if self.permits is None else str(self.permits),
            rates_text(self.rates),
            f"{self.waited:.0%}",
            *("" if each is None else span(each) for each in waits),
            f"{self.used:.1f}",
            str(self.waiting),
            self._gone,
        )

    @property
    def _gone(self) -> str:
        if self.never:
            return f"never: {self.never}"
        if self.gone_in is None:
            return "" if self.what == "measured" else "later"
        return f"in {span(self.gone_in)}" if self.gone_in else ""


def compared(load: Load, numbers: Numbers, target: float | None = None) -> Iterator[Outcome]:
    """Yield the outcomes of these numbers, of their neighbours, and of the least number that meets the target."""
    tasks, number = typical(load, numbers), _number(numbers)
    yield outcome_of("asked", numbers, load, tasks)
    if number is None:
        return
    for what, other in (("fewer", max(floor(0.75 * number), 1)), ("more", ceil(1.25 * number))):
        if other != number:
            yield outcome_of(what, _with(numbers, other), load, tasks)
    if target is not None:
        found = _least(lambda each: outcome_of("least", _with(numbers, each), load, tasks), number, target)
        yield from filter(None, [found])


def _least(outcome: Callable[[int], Outcome], number: int, target: float) -> Outcome | None:
    """Return the outcome of the least number whose p95 is within the target; None if there is none."""

    def meets(tried: Outcome) -> bool:
        return tried.wait_p95 is None or tried.wait_p95 <= target

    low, best = 0, outcome(number)
    while not meets(best):
        low, number = number, number * 2
        if number > _MOST_NUMBER:
            return None
        best = outcome(number)
    while number - low > 1:
        middle = (low + number) // 2
        tried = outcome(middle)
        low, number, best = (low, middle, tried) if meets(tried) else (middle, number, best)
    return best


def outcome_of(what: str, numbers: Numbers, load: Load, tasks: Tasks, *, begun: bool = False) -> Outcome:
    """Return the outcome of simulated starts.

    ``begun``: whether to leave out the waits of tasks that start after the simulation, as the counts do.
    """
    starts, seconds = starts_of(tasks, numbers, load.cost, load.next_start_in), load.seconds
    started = bisect_right(starts, seconds)
    waits = sorted(start - at for start, at in zip(starts[: started if begun else None], tasks.arrivals, strict=False))
    each = load.cost if numbers.permits is None else permits_taken(load.cost, numbers.permits)
    ends = (min(start + took, seconds) - start for start, took in zip(starts[:started], tasks.run_times, strict=False))
    used = sum(ends) + sum(min(end, seconds) for end in tasks.ends)
    return Outcome(
        what=what,
        permits=numbers.permits,
        rates=numbers.rates,
        arrived=len(starts),
        started=started,
        waiting=len(starts) - started,
        waited=sum(wait > 0 for wait in waits) / max(len(waits), 1),
        wait_mean=sum(waits) / len(waits) if waits else None,
        wait_p50=_within(0.5, waits),
        wait_p95=_within(0.95, waits),
        wait_most=waits[-1] if waits else None,
        used=each * used / seconds,
        gone_in=_gone_in(tasks.arrivals, starts, seconds),
        never=_never(load, numbers, each),
    )


def _within(share: float, waits: list[float]) -> float | None:
    return waits[max(ceil(share * len(waits)), 1) - 1] if waits else None


def _gone_in(arrivals: list[float], starts: list[float], seconds: float) -> float | None:
    """Return the time of the first start that leaves no task in the line; 0 if there is no line at the beginning."""
    parked = bisect_right(arrivals, 0.0)
    if not parked:
        return 0.0
    following = [*arrivals[parked:], seconds]
    gone = (start for start, after in zip(starts[parked - 1 :], following, strict=True) if start <= after)
    return next(gone, None)


def _never(load: Load, numbers: Numbers, taken: int) -> str:
    """Return the reason why the line only grows; "" if there is none."""
    permits, work = numbers.permits, load.per_second * load.run_time * taken
    if permits is not None and work >= permits // taken * taken:
        return f"{work:.1f} permits of work arrive for {permits}"
    starts = load.per_second * load.cost
    slow = (f"{often(starts)} arrive for the rate {each.rate}" for each in numbers.rates if starts >= each.per_second)
    return next(slow, "")


def _number(numbers: Numbers) -> int | None:
    """Return the number that is varied: the permits, or the count of the slowest rate; None if there is none."""
    if numbers.permits is not None or not numbers.rates:
        return numbers.permits
    return Rate.parse(_slowest(numbers).rate).count


def _with(numbers: Numbers, number: int) -> Numbers:
    """Return the numbers with another `_number`."""
    if numbers.permits is not None:
        return replace(numbers, permits=number)
    slowest = _slowest(numbers)
    faster = replace(slowest, rate=str(replace(Rate.parse(slowest.rate), count=number)))
    return replace(numbers, rates=tuple(faster if each == slowest else each for each in numbers.rates))


def _slowest(numbers: Numbers) -> RateStatus:
    return min(numbers.rates, key=lambda each: each.per_second)
