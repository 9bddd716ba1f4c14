"""The costs of tasks that run once, for publishers and workers, compared with other packages.

The peers are celery-singleton and celery-once with their defaults; a peer that is not installed is left out.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from itertools import count as count_from
from typing import TYPE_CHECKING, Any, cast

from benchmarks.app import GO, peer_configuration
from benchmarks.figures import Figure
from benchmarks.site import THROTTLED, UNTHROTTLED, BenchmarkError, Site

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from benchmarks.site import Bench, Worker

__all__ = ["lock_bytes", "lost", "publish", "run"]

_LEASE = 3.0
_UNREAD = "unread"  # a queue that no worker consumes

#: Commands that clients send when they publish; scripts call none of these.
_SENT_BY_CLIENTS = ("lpush", "evalsha", "eval", "script|load", "set", "get", "del", "pttl")


@dataclass
class _Way:
    """One way to publish and run a task, with its figures of each round."""

    name: str
    package: str
    queue: str = UNTHROTTLED  # the queue of workers that can run it
    locks: str = ""  # the pattern of its keys, where each lock is a key
    module: str = ""
    asks: bool = False  # a PING before each, on a bare connection
    figures: dict[str, list[float]] = field(default_factory=dict)

    def note(self, what: str, value: float) -> None:
        self.figures.setdefault(what, []).append(value)

    def figure(self, load: str, what: str, unit: str = "", *, at_most: float | None = None) -> Figure:
        return Figure(load, f"{what}: {self.name}", tuple(self.figures[what]), unit, at_most=at_most)

    def against(self, load: str, name: str, other: _Way, what: str, *, reach: float | None = None) -> Figure:
        pairs = zip(self.figures[what], other.figures[what], strict=True)
        return Figure(load, name, tuple(a / b for a, b in pairs), at_least=reach)


class _Ways:
    """All ways: a plain task, ours, and the installed peers."""

    def __init__(self, bench: Bench, site: Site) -> None:
        self.plain = _Way("plain task", "plain")
        # The cost of one more round trip, which is the lower bound for each package that asks Redis first.
        self.asking = _Way("plain task after a bare PING", "plain", asks=True)
        self.ours = _Way("singleton=True", "ours", THROTTLED)
        self.peers = []
        for peer in (
            _Way("celery-singleton", "celery-singleton", locks="SINGLETONLOCK_*", module="celery_singleton"),
            _Way("celery-once", "celery-once", locks="qo_*", module="celery_once"),
        ):
            if f"once-{peer.package}" in site.publisher.tasks:
                self.peers.append(peer)
            else:
                bench.show(f"{peer.name} is left out: {peer.module} cannot be imported")
        self.once = [self.ours, *self.peers]
        self.all = [self.plain, *self.once]


@contextmanager
def _publishing(bench: Bench, **options: Any) -> Iterator[tuple[Site, _Ways]]:
    with Site(bench, **options) as site:
        url = site.publisher.conf.broker_url
        site.publisher.conf.update(peer_configuration(url), throttle_lease=options.get("lease", 60.0))
        ways = _Ways(bench, site)
        # The peers keep their first connection of a process, but every site has its own servers.
        for module, name in (("celery_singleton.backends", "_backend"), ("celery_once.backends.redis", "redis")):
            if any(module.startswith(peer.module) for peer in ways.peers):
                vars(import_module(module))[name] = None
        yield site, ways


def _send(
    site: Site, way: _Way, rows: Iterable[tuple[Any, ...]], queue: str, *, kind: str = "once"
) -> list[str | None]:
    """Publish the task once for each row of arguments; return the ids of the results."""
    send = site.publisher.tasks[f"{kind}-{way.package}"].apply_async
    with site.publisher.producer_pool.acquire(block=True) as producer, _asking(site, way) as ask:
        return [send(row, queue=queue, producer=producer).id for row in rows if ask()]


@contextmanager
def _asking(site: Site, way: _Way) -> Iterator[Callable[[], bool]]:
    if not way.asks:
        yield lambda: True
        return
    connection: Any = site.broker.connection_pool.get_connection()

    def ask() -> bool:
        connection.send_packed_command([b"*1\r\n$4\r\nPING\r\n"], check_health=False)
        return bool(connection.read_response())

    try:
        yield ask
    finally:
        site.broker.connection_pool.release(connection)


# -- publishing -------------------------------------------------------------------------------------------------------


def publish(bench: Bench) -> list[Figure]:
    """Measure calls of ``apply_async``: all with other arguments, and all with the same."""
    count, chunks = (400, 4) if bench.quick else (4000, 20)
    with _publishing(bench) as (site, ways):
        compared = [*ways.all, ways.asking]
        for number in range(bench.rounds):
            site.empty()
            numbers = count_from()
            for way in compared:  # a first load, for connections and scripts
                _send(site, way, ((next(numbers),) for _ in range(50)), _UNREAD)
            _time(site, compared, "unique", count, chunks, numbers)
            if wrong := {way.name: _locks(site, way) for way in ways.once if _locks(site, way) != 50 + count}:
                bench.problem(f"locks of {50 + count} calls that were published: {wrong}")
            site.empty()
            for way in ways.once:
                _send(site, way, [(-1,)], _UNREAD)
            _time(site, ways.once, "duplicate", count, chunks, None)
            queued = site.broker.llen(_UNREAD)
            if queued != len(ways.once):
                bench.problem(f"{queued} messages instead of {len(ways.once)} when all were duplicates")
            bench.show(
                f"round {number}: "
                + ", ".join(f"{way.name} {way.figures['unique, per second'][-1]:.0f}/s" for way in compared)
            )
    load = f"{count} calls of apply_async, one process, each with other arguments"
    same = f"{count} calls of apply_async, one process, all with the same arguments"
    plain = ways.plain
    rate, dup_rate = "unique, per second", "duplicate, per second"
    return [
        ways.ours.against(load, "publishes against a plain task's", plain, rate, reach=0.8),
        *(way.against(load, f"the same: {way.name}", plain, rate) for way in (*ways.peers, ways.asking)),
        _added(load, ways.ours, plain, "commands", at_most=2),
        # The publisher waits for the reply to the claim alone. The confirmation is one more read of the server.
        _added(load, ways.ours, plain, "round trips", at_most=2),
        *(_added(load, peer, plain, "round trips") for peer in ways.peers),
        *(way.figure(load, rate) for way in compared),
        # More exact than the rate on a shared machine, since it excludes the work of other programs.
        *(way.figure(load, "unique, processor time of the publisher", "us") for way in compared),
        *(ways.ours.against(same, f"calls against those of {peer.name}", peer, dup_rate) for peer in ways.peers),
        *(way.figure(same, "duplicate, round trips") for way in ways.once),
        *(way.figure(same, dup_rate) for way in ways.once),
        *(way.figure(same, "duplicate, processor time of the publisher", "us") for way in ways.once),
    ]


def _time(site: Site, ways: Sequence[_Way], what: str, count: int, chunks: int, numbers: Iterator[int] | None) -> None:
    spent: dict[str, list[float]] = {way.name: [0.0] * 4 for way in ways}
    # Small pieces in turn, so that all see the same disturbances; the order turns, so that none is always the first.
    for chunk in range(chunks):
        for way in ways if chunk % 2 else reversed(ways):
            rows = [(next(numbers) if numbers else -1,) for _ in range(count // chunks)]
            sent, trips = _requests(site)
            wall, processor = time.perf_counter(), time.process_time()
            _send(site, way, rows, _UNREAD)
            used = (time.perf_counter() - wall, time.process_time() - processor)
            sent_after, trips_after = _requests(site)
            # Without the first probe, which is one of the requests.
            for index, value in enumerate((*used, sent_after - sent, trips_after - trips - 1)):
                spent[way.name][index] += value
    for way in ways:
        seconds, processor_seconds, commands, reads = spent[way.name]
        way.note(f"{what}, per second", count / seconds)
        way.note(f"{what}, processor time of the publisher", 1_000_000 * processor_seconds / count)
        way.note(f"{what}, commands", commands / count)
        way.note(f"{what}, round trips", reads / count)


def _requests(site: Site) -> tuple[int, int]:
    """Return the number of commands from clients so far, and the number of reads from connections."""
    information: dict[str, Any] = site.broker.info("everything")
    calls = sum(int(information.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in _SENT_BY_CLIENTS)
    return calls, int(information["total_reads_processed"])


def _added(load: str, way: _Way, plain: _Way, what: str, *, at_most: float | None = None) -> Figure:
    pairs = zip(way.figures[f"unique, {what}"], plain.figures[f"unique, {what}"], strict=True)
    return Figure(load, f"Redis {what} added to a publish: {way.name}", tuple(a - b for a, b in pairs), at_most=at_most)


# -- running ----------------------------------------------------------------------------------------------------------


def run(bench: Bench) -> list[Figure]:
    """Run tasks that do nothing, all with other arguments."""
    count = 500 if bench.quick else 3000
    rate, processor = "per second", "processor time of the main process per task"
    with _publishing(bench) as (site, ways):
        [without], [with_it] = site.start(1, 2, throttled=False), site.start(1, 2)
        workers = {UNTHROTTLED: without, THROTTLED: with_it}
        numbers = count_from()
        for way in ways.all:
            _drain(site, way, f"warm {way.name}", 200, numbers)
        # Short and noisy, so twice the rounds; the order turns each round.
        for number in range(2 * bench.rounds):
            for way in ways.all if number % 2 else reversed(ways.all):
                worker = workers[way.queue]
                seconds = _drain(site, way, f"{way.name} {number}", count, numbers, worker)
                way.note(rate, count / seconds[0])
                way.note(processor, 1000 * seconds[1] / count)
                bench.show(f"{way.name}: {way.figures[rate][-1]:.0f}/s, {way.figures[processor][-1]:.2f} ms")
        left = _left(site, ways)
        if any(left.values()):
            bench.problem(f"locks that are left after all tasks have ended: {left}")
    load = f"{count} no-op tasks that run once, each with other arguments, one worker x 2"
    return [
        ways.ours.against(load, "throughput against plain tasks", ways.plain, rate),
        *(peer.against(load, f"the same: {peer.name}", ways.plain, rate) for peer in ways.peers),
        *(way.figure(load, rate) for way in ways.all),
        *(way.figure(load, processor, "ms") for way in ways.all),
    ]


def _drain(
    site: Site, way: _Way, load: str, count: int, numbers: Iterator[int], worker: Worker | None = None
) -> tuple[float, float]:
    """Return the seconds from the end of both plugs to the start of a last task.

    Also return the processor time of the worker's main process, from before it got the tasks.
    """
    processes = 2
    before = worker.processor_seconds() if worker else 0.0
    site.publish("plug", ((load, n) for n in range(processes)), way.queue)
    site.wait(f"{load}:plugged", processes, 30)
    _send(site, way, ((next(numbers),) for _ in range(count)), way.queue)
    site.publish("touch", [(f"{load}:last", 0, 0.0)], way.queue)
    site.journal.rpush(GO, *range(processes))
    last = site.wait(f"{load}:last", 1, 120)[0].end
    first = min(run.end for run in site.runs(load))
    return last - first, (worker.processor_seconds() if worker else 0.0) - before


def _left(site: Site, ways: _Ways) -> dict[str, int]:
    """Return the number of locks of each way, after a wait of 10 seconds at most for their end."""
    deadline = time.monotonic() + 10
    while True:
        left = {way.name: _locks(site, way) for way in ways.once}
        if not any(left.values()) or time.monotonic() > deadline:
            return left
        time.sleep(0.1)


def _locks(site: Site, way: _Way) -> int:
    if way.locks:
        return sum(1 for _ in site.broker.scan_iter(way.locks, count=1000))
    ends = site.store.zrangebyscore(site.keys.key("ends"), time.time() * 1000, "+inf")
    return sum(1 for member in cast("list[bytes]", ends) if member.startswith(b"locks:"))


def _our_keys(site: Site) -> tuple[str, str]:
    return site.keys.key("locks"), site.keys.key("ends")


# -- locks of a killed worker -----------------------------------------------------------------------------------------


def lost(bench: Bench) -> list[Figure]:
    """SIGKILL a worker and its children in the middle of their tasks; publish the same calls again."""
    processes, count = 4, 12
    started: dict[str, list[int]] = {}
    ids: dict[str, list[str | None]] = {}
    with _publishing(bench, lease=_LEASE, failures_expected=True) as (site, ways):
        for number in range(bench.rounds):
            for way in ways.once:
                load = f"{way.name} {number}"
                [victim] = site.start(1, processes, throttled=way.queue == THROTTLED)
                rows = [(load, n, 60.0) for n in range(count)]
                ids[way.name] = _send(site, way, rows, way.queue, kind="once-stay")
                site.wait(load, processes, 30)
                site.workers.remove(victim)
                victim.kill()
                site.broker.delete(way.queue)  # messages it had not received must not run in the next worker
                started[way.name] = [run.number for run in site.runs(load)]
            time.sleep(_LEASE + 1)
            for way in ways.once:
                again = [(f"{way.name} {number}", n, 60.0) for n in started[way.name]]
                answers = _send(site, way, again, _UNREAD, kind="once-stay")
                # A refused call returns the result of the first, or a result without an id.
                refused = sum(answer is None or answer in ids[way.name] for answer in answers)
                if site.broker.llen(_UNREAD) != len(answers) - refused:
                    raise BenchmarkError(f"{way.name}: {refused} refused, but {site.broker.llen(_UNREAD)} published")
                site.broker.delete(_UNREAD)
                way.note("ran when it was killed", len(answers))
                way.note("of these, refused when published again", refused)
                bench.show(f"{way.name}: {refused} of {len(answers)} refused")
            site.empty()
    load = f"worker x {processes} and its children killed (SIGKILL), {_LEASE + 1:g} s later; lease {_LEASE:g} s"
    what = "of these, refused when published again"
    return [
        ways.ours.figure(load, "ran when it was killed"),
        ways.ours.figure(load, what, at_most=0),
        *(peer.figure(load, what) for peer in ways.peers),
    ]


# -- bytes ------------------------------------------------------------------------------------------------------------


def lock_bytes(bench: Bench) -> list[Figure]:
    """Measure the memory per lock of a task that waits in the broker."""
    count = 1000 if bench.quick else 10_000
    what = "per lock"
    with _publishing(bench) as (site, ways):
        for _ in range(min(bench.rounds, 3)):
            for way in ways.once:
                site.empty()
                _send(site, way, ((n,) for n in range(count)), _UNREAD)
                if (locks := _locks(site, way)) != count:
                    raise BenchmarkError(f"{way.name}: {locks} locks for {count} tasks")
                keys: Iterable[Any] = site.broker.scan_iter(way.locks, count=1000) if way.locks else _our_keys(site)
                used = sum(int(site.store.memory_usage(key, samples=0) or 0) for key in keys)
                way.note(what, used / count)
                bench.show(f"{way.name}: {used / count:.0f} B")
    load = f"memory, {count} locks (MEMORY USAGE of their keys)"
    return [way.figure(load, what, "B") for way in ways.once]
