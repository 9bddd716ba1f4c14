"""Rates, keys and turns: how exact, how independent, how fair."""

from __future__ import annotations

import re
import threading
import time
from typing import TYPE_CHECKING

from benchmarks.app import RATE
from benchmarks.figures import Figure, percentile
from benchmarks.site import THROTTLED, BenchmarkError, Site
from benchmarks.stand_in import StandIn
from celery_throttle.core.buckets import Bucket
from celery_throttle.store.parcel import pack

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.site import Bench

__all__ = ["keys", "rate", "turns"]


# -- rate -------------------------------------------------------------------------------------------------------------


class _Grants(threading.Thread):
    """Records the starts by the store's clock, since bodies begin later, and by times that vary."""

    def __init__(self, site: Site, limit: str, count: int) -> None:
        super().__init__(daemon=True)
        self._client, self._count = site.store, count
        # The command that the scripts send with each start; its time is that of the script's beginning.
        self._booked = re.compile(rf"HSET {re.escape(site.keys.key('rates'))} \S*{limit} .*seen\W+(\d+)")
        self.times: list[float] = []
        self.watching = threading.Event()
        self._seen = self._client.monitor()

    def run(self) -> None:
        with self._seen as seen:
            self.watching.set()
            for command in seen.listen():
                if found := self._booked.match(command["command"]):
                    self.times.append(int(found.group(1)) / 1e6)
                    if len(self.times) == self._count:
                        return


def rate(bench: Bench) -> list[Figure]:
    """Start tasks at a rate over three workers; measure the most starts in any second, and the used share."""
    seconds, burst = 5 if bench.quick else 30, 1
    count = RATE * seconds
    most, granted, share = [], [], []
    with Site(bench) as site:
        site.start(3, 2)
        site.publish("paced", (("warm", n, 0.0) for n in range(20)), THROTTLED)
        site.wait("warm", 20, 60)
        for number in range(min(bench.rounds, 3)):
            load = f"paced {number}"
            site.publish("paced", ((load, n, 0.0) for n in range(count)), THROTTLED)
            runs = site.wait(load, count, timeout=60 + 3 * seconds)
            site.check_runs(load, runs, range(count))
            most.append(_most_within([run.start for run in runs], 1.0))
            share.append((count - 1) / RATE / (runs[-1].start - runs[0].start))
            bench.show(f"{load}: {most[-1]:.0f} in a second at the most, {share[-1]:.4f} of the rate")
            # Once more with MONITOR, which slows the server down a little.
            grants = _Grants(site, "paced", count)
            grants.start()
            grants.watching.wait(10)
            site.publish("paced", ((f"{load} watched", n, 0.0) for n in range(count)), THROTTLED)
            site.wait(f"{load} watched", count, timeout=60 + 3 * seconds)
            grants.join(timeout=10)
            if len(grants.times) != count:
                raise BenchmarkError(f"saw {len(grants.times)} of {count} grants")
            granted.append(_most_within(grants.times, 1.0))
            bench.show(f"{load}: {granted[-1]:.0f} grants in a second at the most")
    load = f"{RATE} a second for {seconds} s, three workers x 2"
    return [
        Figure(load, "most starts in any one second, as the store granted", tuple(granted), at_most=RATE + burst),
        Figure(load, "most starts in any one second, as the bodies wrote", tuple(most), at_most=RATE + burst),
        Figure(load, "share of the rate", tuple(share), at_least=0.99),
    ]


def _most_within(starts: Sequence[float], seconds: float) -> float:
    most = first = 0
    for last, start in enumerate(starts):
        while starts[first] <= start - seconds:
            first += 1
        most = max(most, last - first + 1)
    return most


# -- keys -------------------------------------------------------------------------------------------------------------


def keys(bench: Bench) -> list[Figure]:
    """Compare the start of tasks while very many wait for another key with the same without them."""
    many, count = (5000, 100) if bench.quick else (100_000, 300)
    p95: dict[int, list[float]] = {0: [], many: []}
    p50: dict[int, list[float]] = {0: [], many: []}
    with Site(bench) as site:
        site.start(2, 2)
        _touch(site, "warm", 50)
        for number in range(bench.rounds):
            for parked in (0, many):
                _crowd(site, parked)
                delays = _touch(site, f"keys {parked} {number}", count)
                p50[parked].append(1000 * percentile(delays, 50))
                p95[parked].append(1000 * percentile(delays, 95))
                site.store.delete(*site.keys.all)
                # Workers notice the empty store, declare their limits again and wait a moment for each other.
                _touch(site, f"again {parked} {number}", 1)
            bench.show(", ".join(f"{parked} parked: p95 {values[-1]:.2f} ms" for parked, values in p95.items()))
    load = f"start of a task while {many} wait for another key, one after the other, two workers x 2"
    ratios = tuple(b / a for a, b in zip(p95[0], p95[many], strict=True))
    figures = [Figure(load, "p95 from publish to start, against no parked tasks", ratios, "x", at_most=1.2)]
    for name, found in (("p50", p50), ("p95", p95)):
        figures += [Figure(load, f"{name} with {parked} parked", tuple(took), "ms") for parked, took in found.items()]
    return figures


def _touch(site: Site, load: str, count: int) -> list[float]:
    """Publish ``count`` tasks of a free key, each after the end of the one before; return their delays."""
    for number in range(count):
        site.publish("keyed", [(load, number, time.time(), "free")], THROTTLED)
        deadline = time.monotonic() + 30
        while site.count(load) <= number:
            if time.monotonic() > deadline:
                raise BenchmarkError(f"task {number} of {load!r} did not run")
            time.sleep(0.002)
    return [run.end - run.start for run in site.runs(load)]


def _crowd(site: Site, count: int) -> None:
    """Park ``count`` tasks of one key behind a taken permit."""
    if not count:
        return
    worker, bucket = StandIn(site.store, site.keys, THROTTLED), Bucket("keyed", "crowded").text
    worker.hold(1, bucket)
    worker.park(count, bucket, [_message(site)])


def _message(site: Site) -> bytes:
    site.publish("keyed", [("never", 0, 0.0, "crowded")], "sample")
    with site.publisher.connection_for_read() as connection, connection.SimpleQueue("sample") as queue:
        message = queue.get(timeout=10)
        message.ack()
        return pack(message)


# -- turns ------------------------------------------------------------------------------------------------------------


def turns(bench: Bench) -> list[Figure]:
    """Measure the wait of a few tasks of one tenant, behind a flood of another tenant."""
    flood, few, seconds = (100, 5, 0.02) if bench.quick else (500, 20, 0.02)
    waits: dict[str, list[float]] = {"in-order": [], "in-turns": []}
    walls: dict[str, list[float]] = {"in-order": [], "in-turns": []}
    with Site(bench) as site:
        site.start(2, 4)
        for task in waits:
            site.publish(task, ((f"warm {task}", n, 0.0, "warm") for n in range(16)), THROTTLED)
            site.wait(f"warm {task}", 16, 60)
        for number in range(bench.rounds):
            for task, found in waits.items():
                load = f"{task} {number}"
                site.publish(task, ((f"{load} flood", n, seconds, "flood") for n in range(flood)), THROTTLED)
                sent = time.time()
                site.publish(task, ((load, n, seconds, "other") for n in range(few)), THROTTLED)
                runs = site.wait(load, few, 60 + flood * seconds)
                rest = site.wait(f"{load} flood", flood, 60 + flood * seconds)
                site.check_runs(load, runs, range(few))
                site.check_runs(load, rest, range(flood), 2)
                found.append(max(run.start for run in runs) - sent)
                walls[task].append(max(run.end for run in (*runs, *rest)) - min(run.start for run in (*runs, *rest)))
                bench.show(f"{load}: the last of the other tenant's starts after {found[-1]:.2f} s")
    load = f"{flood} x {seconds:g} s of one tenant, then {few} of another, limit 2, two workers x 4"
    names = {"in-order": "first come, first served", "in-turns": "fair_by"}
    return [
        *(
            Figure(load, f"until the last of the other one has started: {names[t]}", tuple(v), "s")
            for t, v in waits.items()
        ),
        *(Figure(load, f"until all have ended: {names[t]}", tuple(v), "s") for t, v in walls.items()),
    ]
