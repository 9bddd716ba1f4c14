"""The time until the permit of a killed process is used again."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import TYPE_CHECKING

from benchmarks.figures import Figure
from benchmarks.site import THROTTLED, Site, until

if TYPE_CHECKING:
    from benchmarks.site import Bench, Run

__all__ = ["child_killed", "worker_killed"]

_LEASE = 3.0
_LONG = 60.0


def worker_killed(bench: Bench) -> list[Figure]:
    """SIGKILL the main process of the worker that runs a task, while another task is parked behind it."""
    times = []
    with Site(bench, lease=_LEASE, failures_expected=True) as site:
        site.start(2, 2)
        for number in range(bench.rounds):
            load = f"worker {number}"
            holder = _occupy(site, load, phase=random.uniform(0, _LEASE / 3))
            victim = next(worker for worker in site.workers if worker.pid == holder.worker)
            site.workers.remove(victim)
            killed = time.time()
            os.kill(victim.pid, signal.SIGKILL)
            times.append(_successor(site, load) - killed)
            victim.kill()  # children that may be left
            bench.show(f"{load}: {times[-1]:.2f} s")
            site.start(1, 2)
    load = f"worker killed (SIGKILL), lease {_LEASE:g} s"
    return [Figure(load, "to the start of the task parked behind it", tuple(times), "s", at_most=4.5)]


def child_killed(bench: Bench) -> list[Figure]:
    """SIGKILL the pool process that runs a task, while another task is parked behind it."""
    times = []
    with Site(bench, failures_expected=True) as site:
        site.start(2, 2)
        for number in range(bench.rounds):
            load = f"child {number}"
            holder = _occupy(site, load, phase=random.uniform(0, 0.5))
            killed = time.time()
            os.kill(holder.child, signal.SIGKILL)
            times.append(_successor(site, load) - killed)
            bench.show(f"{load}: {times[-1]:.2f} s")
    load = "pool process killed (SIGKILL)"
    return [Figure(load, "to the start of the task parked behind it", tuple(times), "s", at_most=1.0)]


def _occupy(site: Site, load: str, phase: float) -> Run:
    """Start one task, park another behind it; return the run of the first, at a random time between two renewals."""
    site.publish("hold", [(load, 1, _LONG)], THROTTLED)
    [run] = site.wait(load, 1, 30)
    site.publish("hold", [(load, 2, 0.0)], THROTTLED)
    parked = site.keys.all[4]
    until(lambda: bool(site.store.zcard(parked)), 30, "the second task was not parked")
    time.sleep(phase)
    return run


def _successor(site: Site, load: str) -> float:
    runs = site.wait(load, 2, 60)
    return next(run.start for run in runs if run.number == 2)
