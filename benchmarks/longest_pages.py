"""The longest time that one script of an operator's page blocks the server, with many parked tasks."""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch
from urllib.request import urlopen

from celery import Celery
from kombu.message import Message

from benchmarks.figures import Figure
from benchmarks.longest import GOAL, Clock, server_with_scripts
from benchmarks.page import served
from benchmarks.stand_in import StandIn
from celery_throttle import Limit, Throttled
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.keys import Keys
from celery_throttle.signals import limit_changed
from celery_throttle.store.caller import Caller
from celery_throttle.store.parcel import pack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from redis import Redis

    from benchmarks.site import Bench
    from celery_throttle.store.scripts import Call

__all__ = ["pages"]

_PREFIX = "page"
_API, _TENANT = Limit("api", 8), Limit("tenant", 2, key="tenant_id")
#: Keys of the second limit that have a line, and the share of all parked tasks in the line of the first key.
_KEYS, _LONGEST_LINE = 500, 0.3


def pages(bench: Bench) -> list[Figure]:
    """Request each page, with half of the parked tasks on one limit and the others on keys of another one.

    The shortest time of all rounds counts for each call of a page, and the longest call for each page.
    """
    parked = 2000 if bench.quick else 100_000
    load, figures = f"{parked} parked tasks", []
    with server_with_scripts() as (server, client):
        _fill(client, parked)
        with _timed(Clock(server, client)) as times, served(_app(server.url)) as url:
            for name, path in _pages(client).items():
                least: dict[tuple[str, int], float] = {}
                for _ in range(max(2, bench.rounds)):
                    times.clear()
                    limit_changed.send("all", event=None)  # drops the readings that the page keeps
                    with urlopen(url + path, timeout=60) as answer:
                        answer.read()
                    for call, took in _numbered(times).items():
                        least[call] = min(took, least.get(call, took))
                (script, _), longest = max(least.items(), key=lambda item: item[1])
                bench.show(f"{name}: {len(least)} calls, {script} {longest:.1f} ms")
                figures.append(Figure(load, f"{name}: longest script ({script})", (longest,), "ms", at_most=GOAL))
    return figures


def _numbered(times: Iterable[tuple[str, float]]) -> dict[tuple[str, int], float]:
    """Return the time of each call, by its script and the number of earlier calls of that script."""
    counts: Counter[str] = Counter()
    found = {}
    for script, took in times:
        found[script, counts[script]] = took
        counts[script] += 1
    return found


def _pages(client: Redis) -> dict[str, str]:
    """Return the address of each page."""
    first, *_, last = _in_line(client)
    paths = {
        "overview": "",
        "overview, a part of a name": "?find=ten",
        "limit": "limit?name=api",
        "limit, 1000 rows": "limit?name=api&most=1000",
        "limit with keys": "limit?name=tenant",
        "limit with keys, longest line first": "limit?name=tenant&sort=backlog",
        "limit with keys, a part of a key": "limit?name=tenant&find=key+4",
        "key": "limit?name=tenant&key=key+0",
        "task, first in its line": f"task?id={first}",
        "task, last in its line": f"task?id={last}",
        "locks": "locks",
        "audit": "audit",
        "workers": "workers",
        "report": "report",
        "metrics": "metrics",
    }
    changes = ("set", "pause", "resume", "drop")
    return paths | {f"change: {each}": f"limit/change?name=api&change={each}" for each in changes}


def _in_line(client: Redis) -> list[str]:
    """Return the ids of the tasks that wait for the first limit, in their order."""
    found: Any = client.zrangebylex(Keys(_PREFIX).key("lines"), b"[1:api\0", b"(1:api\1")
    return [each.rpartition(b".")[2].decode() for each in found]


@contextmanager
def _timed(clock: Clock) -> Iterator[list[tuple[str, float]]]:
    """Record the script of each call of a client, with its time in ms."""
    times: list[tuple[str, float]] = []
    carry_out = Caller.call

    def call(caller: Caller, what: Call) -> Any:
        took, reply = clock.measure(partial(carry_out, caller, what))
        times.append((what.script.name, took))
        return reply

    with patch.object(Caller, "call", call):
        yield times


def _fill(client: Redis, parked: int) -> None:
    worker = StandIn(client, Keys(_PREFIX), "celery", "reports")
    worker.declare(api=_API.declared, tenant=_TENANT.declared)
    message = [_message()]
    worker.hold(8, "api")
    worker.park(parked // 2, "api", message)
    line = int(parked * _LONGEST_LINE)
    each = (parked - parked // 2 - line) // (_KEYS - 1)
    for number in range(_KEYS):
        bucket = Bucket("tenant", f"key {number}").text
        worker.hold(2, bucket)
        worker.park(each if number else line, bucket, message)


def _message() -> bytes:
    headers: Any = {"task": "reports.make", "id": "0" * 36, "argsrepr": "(1, 2)", "kwargsrepr": "{}", "retries": 0}
    return pack(Message("[[1, 2], {}, {}]", headers=headers, properties={"delivery_tag": "0" * 36}))


def _app(store: str) -> Any:
    app: Any = Celery("page", broker=store, set_as_current=False)
    app.conf.throttle_prefix = _PREFIX
    app.task(base=Throttled, limit=[_API, _TENANT], name="reports.make", shared=False)(_make)
    return app


def _make(tenant_id: str) -> None: ...
