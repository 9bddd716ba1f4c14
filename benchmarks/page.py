"""The time of the overview of the operator's page, with many limits."""

from __future__ import annotations

import struct
import time
from contextlib import contextmanager
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.request import urlopen

import uvicorn
from celery import Celery
from redis import Redis

from benchmarks.figures import Figure, percentile
from benchmarks.stand_in import StandIn
from celery_throttle import Limit, Throttled
from celery_throttle.control.findings import Commands
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.history import MINUTES, SLOT, Place
from celery_throttle.core.keys import Keys
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.signals import limit_changed
from celery_throttle.web.serving import behind, listening

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.site import Bench

__all__ = ["overview", "served"]

_PREFIX = "page"
#: Limits that have keys.
_KEYED = 10
#: The requests, each with its goal in ms.
_PAGES = {
    "overview (100 rows)": ("", 200.0),
    "overview, all rows": ("?most=1000", None),
    "live part": ("?part=live", 200.0),
}


def overview(bench: Bench) -> list[Figure]:
    """Request the overview after a change, since the page keeps its readings for a moment.

    Each limit has one permit. The permit of every third limit is held, and for half of these a task waits. Ten more
    limits have keys, 5 000 together, each with a holder; for every fifth key a task waits. Every second limit had
    starts in the last hour.
    """
    limits, requests = (100, 20) if bench.quick else (1000, 200)
    keys = limits * 5
    load = f"{limits} limits and {keys} keys, {requests} requests one after the other"
    figures = []
    with EmbeddedServer() as server, Redis.from_url(server.url) as client:
        _fill(client, limits, keys)
        with served(_app(server.url, limits)) as url:
            for name, (path, goal) in _PAGES.items():
                _took(url + path)  # templates, connections
                values = []
                for _ in range(bench.rounds):
                    values.append(percentile([_took(url + path) for _ in range(requests)], 95) * 1000)
                    bench.show(f"{name}: p95 {values[-1]:.0f} ms")
                figures.append(Figure(load, f"p95 of the {name}", tuple(values), "ms", at_most=goal))
    return figures


def _fill(client: Redis, limits: int, keys: int) -> None:
    worker = StandIn(client, Keys(_PREFIX), "celery")
    names = _names(limits)
    worker.declare(**dict.fromkeys(names, 1))
    for number, name in enumerate(names[::3]):
        worker.hold(1, name)
        worker.park(number % 2, name, [b"a message"])
    worker.declare(**dict.fromkeys((f"keyed-{number}" for number in range(_KEYED)), 1))
    for number in range(keys):
        bucket = Bucket(f"keyed-{number % _KEYED}", f"key {number}").text
        worker.hold(1, bucket)
        worker.park(number % 5 == 0, bucket, [b"a message"])
    for name in (*names[::4], *names[1::4]):  # includes every second limit with a waiting task
        client.set(Keys(_PREFIX).ring(MINUTES.name, name), _hour())


def _hour() -> bytes:
    """Return the ring of a limit with starts in each minute, at once and after a wait."""
    last, slots = int(time.time()) // MINUTES.seconds, []
    for place in range(MINUTES.slots):
        counts = [0] * SLOT
        counts[0] = last - (last - place) % MINUTES.slots
        counts[Place.AT_ONCE], counts[Place.WAITED + 3] = place * 7 % 13 + 1, place * 11 % 7
        slots.append(struct.pack(f">{SLOT}I", *counts))
    return b"".join(slots)


def _names(limits: int) -> list[str]:
    return [f"limit-{number}" for number in range(limits)]


def _app(store: str, limits: int) -> Any:
    app: Any = Celery("page", broker=store, set_as_current=False)
    app.conf.throttle_prefix = _PREFIX
    for name in _names(limits):
        app.task(base=Throttled, limit=Limit(name, 1), name=name, shared=False)(_nothing)
    return app


@contextmanager
def served(app: Any) -> Iterator[str]:
    """Serve the page of an app; yield its URL."""
    listener, url = listening("127.0.0.1", 0, None)
    page = behind(app, Commands(), None, "all", "127.0.0.1")
    server = uvicorn.Server(uvicorn.Config(page, log_level="warning", lifespan="off"))
    thread = Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield url
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def _nothing() -> None: ...


def _took(url: str) -> float:
    limit_changed.send("all", event=None)
    began = time.perf_counter()
    with urlopen(url, timeout=30) as answer:
        answer.read()
    return time.perf_counter() - began
