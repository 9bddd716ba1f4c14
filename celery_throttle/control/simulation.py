"""Simulate the starts of tasks on one limit, first come, first served, with the gate's permits and rates.

The tasks are drawn once for all numbers that are compared. So a difference between two numbers is not chance.
"""

from __future__ import annotations

from heapq import heapreplace
from itertools import cycle, islice
from math import ceil
from random import Random
from typing import TYPE_CHECKING, NamedTuple

from celery_throttle.store.limit_status import permits_taken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from celery_throttle.control.overrides import Numbers
    from celery_throttle.store.limit_status import RateStatus

__all__ = ["MOST_TASKS", "Load", "Tasks", "drawn", "shortened", "starts_of", "typical"]

#: More tasks would take some seconds.
MOST_TASKS = 500_000
_MINUTE = 60.0
#: Fewer tasks are drawn several times, because chance changes their waits more.
_MANY_TASKS, _ROUNDS = 50_000, 5


class Load(NamedTuple):
    """The load of a limit for the time of a simulation, and the limit's state at the beginning.

    Attributes:
        arrivals: the arrivals a second, for one minute after the other; after the last minute the first follows.
        run_time: the mean seconds of a run.
        spread: the standard deviation of run times, divided by their mean; 0: all runs take as long.
        cost: the permits that each task takes.
        counted: whether the arrivals of each minute were counted. Then as many arrive; else their number is drawn.
        seconds: the length of the simulation.
        seed: the same seed draws the same tasks.
        waits: the seconds that each parked task has waited at the beginning, the oldest first.
        running: the runs that hold permits at the beginning.
        next_start_in: the seconds until the rates allow the next start.
    """

    arrivals: tuple[float, ...]
    run_time: float
    spread: float = 1.0
    cost: int = 1
    counted: bool = False
    seconds: float = 3600.0
    seed: int = 0
    waits: tuple[float, ...] = ()
    running: int = 0
    next_start_in: float = 0.0

    @property
    def per_second(self) -> float:
        """The mean arrivals a second."""
        return sum(self.arrivals) / len(self.arrivals)


class Tasks(NamedTuple):
    """The tasks of a simulation, in the order of their arrival; all times are in seconds from the beginning.

    A task that was parked then has an arrival of 0 or less. ``ends``: the sorted ends of the runs that hold permits
    then.
    """

    arrivals: list[float]
    run_times: list[float]
    ends: list[float]


def shortened(load: Load) -> Load:
    """Return the load, for less time if more than `MOST_TASKS` tasks would arrive."""
    most = max(MOST_TASKS - len(load.waits), MOST_TASKS // 10)
    return load._replace(seconds=min(load.seconds, most / max(load.per_second, 1e-9)))


def drawn(load: Load) -> Tasks:
    """Draw the tasks that are parked at the beginning, or arrive later.

    Arrivals are a Poisson process: within a minute with a counted number of them, each moment is as likely.
    """
    arrivals, random = [-each for each in load.waits], Random(load.seed)  # noqa: S311 - no secret
    draw_arrivals = _counted_arrivals if load.counted else _arrivals
    for minute, per_second in enumerate(islice(cycle(load.arrivals), ceil(load.seconds / _MINUTE))):
        at = minute * _MINUTE
        arrivals += draw_arrivals(random, per_second, at, min(at + _MINUTE, load.seconds))
    draw = _run_times(load, Random(~load.seed))  # noqa: S311 - as above
    ends = sorted(draw() for _ in range(load.running))
    return Tasks(arrivals, [draw() for _ in arrivals], ends)


def _arrivals(random: Random, per_second: float, at: float, end: float) -> Iterator[float]:
    while per_second and (at := at + random.expovariate(per_second)) < end:
        yield at


def _counted_arrivals(random: Random, per_second: float, at: float, end: float) -> list[float]:
    number = int(per_second * (end - at) + random.random())
    return sorted(random.uniform(at, end) for _ in range(number))


def _run_times(load: Load, random: Random) -> Callable[[], float]:
    if not load.run_time or not load.spread:
        return lambda: load.run_time
    if load.spread == 1:
        return lambda: random.expovariate(1 / load.run_time)
    shape = load.spread**-2
    return lambda: random.gammavariate(shape, load.run_time / shape)


def starts_of(tasks: Tasks, numbers: Numbers, cost: int = 1, next_start_in: float = 0.0) -> list[float]:
    """Return the start of each task, in seconds from the beginning.

    With tasks that take equally many permits, each start is at the latest of three times: the arrival of the task, the
    end of the run whose permits it gets, and the time that the rates allow.
    """
    starts, slots = [], _slots(tasks, numbers.permits, cost)
    paces = [_Pace(each, cost, next_start_in) for each in numbers.rates]
    for arrival, run_time in zip(tasks.arrivals, tasks.run_times, strict=True):
        start = max(arrival, slots[0])
        for pace in paces:
            start = max(start, pace.allowed)
        for pace in paces:
            pace.book(start)
        heapreplace(slots, start + run_time)
        starts.append(start)
    return starts


def typical(load: Load, numbers: Numbers) -> Tasks:
    """Draw the tasks several times, and return those with the median mean wait."""
    rounds = _ROUNDS if load.per_second * load.seconds < _MANY_TASKS else 1
    found = [drawn(load._replace(seed=load.seed * _ROUNDS + number)) for number in range(rounds)]
    found.sort(key=lambda tasks: sum(starts_of(tasks, numbers, load.cost, load.next_start_in)) - sum(tasks.arrivals))
    return found[rounds // 2]


def _slots(tasks: Tasks, permits: int | None, cost: int) -> list[float]:
    """Return the times at which permits for one task are free: a heap."""
    most = len(tasks.arrivals) + len(tasks.ends)
    at_once = most if permits is None else min(permits // permits_taken(cost, permits), most)
    ends = tasks.ends[-at_once:]  # of more runs than may be now, the first that end free no room
    return [0.0] * (at_once - len(ends)) + ends


class _Pace:
    """The bookings of a rate, as in gcra.lua.

    The rest of a burst is not known at the beginning: all of it counts as free if a task may start now, else none.
    """

    def __init__(self, rate: RateStatus, cost: int, next_start_in: float) -> None:
        self._spacing = cost / rate.per_second
        self._lead = (max(rate.burst, cost) - cost) / rate.per_second
        self.allowed = next_start_in if next_start_in > 0 else -self._lead

    def book(self, start: float) -> None:
        self.allowed = max(self.allowed, start - self._lead) + self._spacing
