"""The costs of throttling for tasks below their limit, for other tasks in the worker, and for each hand-over."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING

from benchmarks.app import GO
from benchmarks.figures import Figure, percentile
from benchmarks.site import THROTTLED, UNTHROTTLED, Site

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.site import Bench

__all__ = ["bystanders", "handover", "noop"]


@dataclass
class _Variant:
    name: str
    task: str
    queue: str
    ignore_result: bool
    rates: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)  # of the worker's main process, ms per task


def noop(bench: Bench) -> list[Figure]:
    """Run tasks that do nothing, under a limit that is never reached."""
    count = 500 if bench.quick else 3000
    variants = [
        _Variant("plain Celery", "noop", UNTHROTTLED, ignore_result=True),
        _Variant("plain task beside throttled ones", "noop", THROTTLED, ignore_result=True),
        _Variant("Throttled", "noop-throttled", THROTTLED, ignore_result=True),
        _Variant("plain Celery, with result", "noop-result", UNTHROTTLED, ignore_result=False),
        _Variant("Throttled, with result", "noop-result-throttled", THROTTLED, ignore_result=False),
        _Variant("plain Celery, acks_late", "noop-late", UNTHROTTLED, ignore_result=True),
        _Variant("Throttled, acks_late", "noop-late-throttled", THROTTLED, ignore_result=True),
    ]
    with Site(bench) as site:
        [without], [with_it] = site.start(1, 2, throttled=False), site.start(1, 2)
        workers = {UNTHROTTLED: without, THROTTLED: with_it}
        for variant in variants:
            _drain(site, variant, f"warm {variant.name}", 200)
        # Short and noisy, so twice the rounds; the order turns each round, so that none is always the first.
        for number in range(2 * bench.rounds):
            for variant in variants if number % 2 else reversed(variants):
                worker = workers[variant.queue]
                before = worker.processor_seconds()
                rate = _drain(site, variant, f"{variant.name} {number}", count)
                variant.rates.append(rate)
                variant.processor.append(1000 * (worker.processor_seconds() - before) / count)
                bench.show(f"{variant.name}: {rate:.0f}/s, {variant.processor[-1]:.2f} ms")
    load = f"{count} no-op tasks under a limit that is never reached, one worker x 2"
    plain, beside, throttled, plain_result, throttled_result, plain_late, throttled_late = variants
    return [
        _ratio(load, "throughput against plain Celery", throttled, plain, reach=0.85),
        _ratio(load, "throughput against plain tasks in the same worker", throttled, beside, reach=0.85),
        _ratio(load, "plain tasks in that worker against plain Celery", beside, plain),
        _ratio(load, "throughput against plain Celery, with results", throttled_result, plain_result, reach=0.85),
        _ratio(load, "throughput against plain Celery, acks_late", throttled_late, plain_late),
        *(Figure(load, f"per second: {variant.name}", tuple(variant.rates)) for variant in variants),
        # More exact than throughput on a shared machine, since it excludes the work of other programs.
        *(
            Figure(load, f"processor time of the main process per task: {variant.name}", tuple(variant.processor), "ms")
            for variant in variants
        ),
    ]


def _drain(site: Site, variant: _Variant, load: str, count: int) -> float:
    """Return the tasks per second, from the end of both plugs to the start of a last task."""
    processes = 2
    site.publish("plug", ((load, n) for n in range(processes)), variant.queue)
    site.wait(f"{load}:plugged", processes, 30)
    site.publish(variant.task, (() for _ in range(count)), variant.queue, ignore_result=variant.ignore_result)
    site.publish("touch", [(f"{load}:last", 0, 0.0)], variant.queue)
    site.journal.rpush(GO, *range(processes))
    last = site.wait(f"{load}:last", 1, 120)[0].end
    first = min(run.end for run in site.runs(load))
    return count / (last - first)


def _ratio(load: str, name: str, above: _Variant, below: _Variant, *, reach: float | None = None) -> Figure:
    return Figure(load, name, tuple(a / b for a, b in zip(above.rates, below.rates, strict=True)), at_least=reach)


def bystanders(bench: Bench) -> list[Figure]:
    """Compare plain tasks in a worker at its limit with those in a worker that runs as many plain tasks."""
    count, seconds, limit, processes = 20 if bench.quick else 60, 0.2, 2, 4
    busy = count * seconds / limit
    latencies: dict[str, list[list[float]]] = {"relay": [], "limit-2": []}
    with Site(bench) as site:
        site.start(1, processes, throttled=False)
        site.start(1, processes)
        for queue in (UNTHROTTLED, THROTTLED):
            _touch(site, f"warm {queue}", queue, 1.0)
        for number in range(bench.rounds):
            for task, queue in (("relay", UNTHROTTLED), ("limit-2", THROTTLED)):
                load = f"{task} {number}"
                if task == "relay":
                    half = count // limit
                    site.publish(task, ((load, n * half, seconds, half, queue) for n in range(limit)), queue)
                else:
                    site.publish(task, ((load, n, seconds) for n in range(count)), queue)
                latencies[task].append(_touch(site, f"touch {load}", queue, busy))
                runs = site.wait(load, count, 60 + 3 * busy)
                site.check_runs(load, runs, range(count), limit)
                bench.show(f"{load}: bystanders p50 {1000 * percentile(latencies[task][-1], 50):.2f} ms")
    name = f"{count} x {seconds:g} s, limit {limit}, beside 100 plain tasks a second in the same worker x {processes}"
    return [
        _compared(
            name, "plain tasks' latency against plain Celery, p50", latencies["limit-2"], latencies["relay"], 50, 1.2
        ),
        _compared(name, "plain tasks' latency against plain Celery, p99", latencies["limit-2"], latencies["relay"], 99),
        *_milliseconds(name, "latency beside throttled tasks", latencies["limit-2"]),
        *_milliseconds(name, "latency in plain Celery", latencies["relay"]),
    ]


def handover(bench: Bench) -> list[Figure]:
    """Compare the time from the end of a task to the start of the next one with plain Celery's publish to start."""
    count, seconds = 100 if bench.quick else 300, 0.02
    gaps: list[list[float]] = []
    plain: list[list[float]] = []
    with Site(bench) as site:
        site.start(1, 4, throttled=False)
        site.start(2, 4)
        _touch(site, "warm", UNTHROTTLED, 1.0)
        for number in range(bench.rounds):
            # With an idle worker and no other load, which is the best case for plain Celery.
            plain.append(_touch(site, f"touch {number}", UNTHROTTLED, count * seconds, every=seconds))
            load = f"limit-1 {number}"
            site.publish("limit-1", ((load, n, seconds) for n in range(count)), THROTTLED)
            runs = site.wait(load, count, 60 + 5 * count * seconds)
            site.check_runs(load, runs, range(count), 1)
            pairs = list(pairwise(runs))
            # Without the first tasks, which start while others are still published and parked.
            gaps.append([after.start - before.end for before, after in pairs[count // 10 :]])
            bench.show(
                f"{load}: p50 {1000 * percentile(gaps[-1], 50):.2f} ms, "
                f"publish to start {1000 * percentile(plain[-1], 50):.2f} ms"
            )
    load = f"{count} x {seconds:g} s, limit 1, two workers x 4: from the end of one to the start of the next"
    ours, theirs = _milliseconds(load, "hand-over", gaps), _milliseconds(load, "plain Celery, publish to start", plain)
    goal = theirs[0].median
    ours[0] = Figure(load, ours[0].name, ours[0].values, "ms", at_most=goal, why="(plain Celery's p50)")
    return [*ours, *theirs]


def _touch(site: Site, load: str, queue: str, seconds: float, every: float = 0.01) -> list[float]:
    """Publish plain tasks at a steady pace; return the time from the call that publishes each to its start."""
    count = max(int(seconds / every), 1)
    begin = time.time()
    with site.publisher.producer_pool.acquire(block=True) as producer:
        for number in range(count):
            time.sleep(max(begin + number * every - time.time(), 0))
            arguments = (load, number, time.time())
            site.publisher.send_task("touch", args=arguments, queue=queue, producer=producer, ignore_result=True)
    runs = site.wait(load, count, 60)
    site.check_runs(load, runs, range(count))
    return [run.end - run.start for run in runs]


def _compared(
    load: str,
    name: str,
    ours: Sequence[Sequence[float]],
    theirs: Sequence[Sequence[float]],
    percent: int,
    reach: float | None = None,
) -> Figure:
    ratios = (percentile(our, percent) / percentile(their, percent) for our, their in zip(ours, theirs, strict=True))
    return Figure(load, name, tuple(ratios), at_most=reach)


def _milliseconds(load: str, name: str, rounds: Sequence[Sequence[float]]) -> list[Figure]:
    return [
        Figure(load, f"{name}, p{percent}", tuple(1000 * percentile(values, percent) for values in rounds), "ms")
        for percent in (50, 99)
    ]
