"""How far tasks start from the order in which they were published, on workers that have just started."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.figures import Figure
from benchmarks.site import THROTTLED, Site

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.site import Bench, Run

__all__ = ["order"]

_COUNT, _SECONDS, _LIMIT = 72, 0.5, 6
#: Places that a task may be off: both workers have read some messages when either parks its first.
_MOST = 8


def order(bench: Bench) -> list[Figure]:
    """Publish 72 tasks at once to two fresh workers, four times in each round: 20 times by default."""
    largest = []
    with Site(bench) as site:
        for number in range(2 if bench.quick else 4 * bench.rounds):
            load = f"order {number}"
            site.start(2, 4)
            site.publish(f"limit-{_LIMIT}", ((load, n, _SECONDS) for n in range(_COUNT)), THROTTLED)
            runs = site.wait(load, _COUNT, timeout=60 + 2 * _COUNT * _SECONDS / _LIMIT)
            site.check_runs(load, runs, range(_COUNT), _LIMIT)
            site.end_workers()
            site.empty()
            largest.append(_most_off(runs))
            bench.show(f"{load}: at most {largest[-1]} places off")
    within = sum(places <= _MOST for places in largest) / len(largest)
    load = f"{_COUNT} x {_SECONDS:g} s at once, limit {_LIMIT}, two fresh workers x 4, {len(largest)} rounds"
    return [
        Figure(load, "most places that a start is off, in each round", tuple(map(float, largest)), at_most=_MOST),
        Figure(load, f"rounds in which none is more than {_MOST} off", (100 * within,), "%", at_least=100),
    ]


def _most_off(runs: Sequence[Run]) -> int:
    """Return how far the start that is furthest from its place of publication is from it; runs are by start."""
    return max(abs(run.number - place) for place, run in enumerate(runs))
