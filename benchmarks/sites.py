"""The time until a worker that joins starts the first task that waits for a permit of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.figures import Figure
from benchmarks.site import THROTTLED, Site, until

if TYPE_CHECKING:
    from benchmarks.site import Bench

__all__ = ["join"]

_LONG = 600.0


def join(bench: Bench) -> list[Figure]:
    """Start a worker while two tasks wait, and the permits of the other worker are in use."""
    times = []
    with Site(bench) as site:
        site.start(1, 2)
        site.publish("each-worker", [("hold", number, _LONG) for number in range(2)], THROTTLED)
        for number in range(bench.rounds):
            load = f"join {number}"
            site.publish("each-worker", [(load, each, 0.0) for each in range(2)], THROTTLED)
            until(lambda: site.store.zcard(site.keys.all[4]) == 2, 30, "the tasks were not parked")
            with site.store.monitor() as commands:
                [joined] = site.start(1, 2)
                run = site.wait(load, 2, 30)[0]
                # The calls of a worker have its name, as that of its site.
                called = next(each for each in commands.listen() if f"worker={joined.name}@" in each["command"])
            times.append(run.start - called["time"])
            joined.process.terminate()  # a killed worker may take the next messages along
            joined.process.wait()
            site.workers.remove(joined)
            bench.show(f"{load}: {times[-1] * 1000:.0f} ms")
    figure = "from its first call to the start of the first task that waits for a permit of it"
    return [Figure("a worker joins, limit of 2 on each worker", figure, tuple(times), "s", at_most=0.1)]
