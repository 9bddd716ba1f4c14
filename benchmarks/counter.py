"""The usual benchmark of locking on Redis, in four ways: ``value = max(now, value + 30)`` by many threads at once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from redis import Redis
from redis.exceptions import WatchError
from redis.lock import Lock

from benchmarks.figures import Figure
from benchmarks.site import BenchmarkError
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.primitives import Counter

if TYPE_CHECKING:
    from collections.abc import Callable

    from benchmarks.site import Bench

    #: Makes one change; returns the new value, and the number of retries.
    Way = Callable[[], tuple[int, int]]

__all__ = ["advance"]

_STEP = 30
_THREADS = (1, 5, 10, 50)

#: An ordinary script for it, sent as EVALSHA.
_PLAIN = """
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local value = math.max(now, (tonumber(redis.call('GET', KEYS[1])) or 0) + ARGV[1])
redis.call('SET', KEYS[1], string.format('%.0f', value))
return value
"""


@dataclass
class _Row:
    """The figures of one way with one number of threads, a value for each round."""

    rates: list[float] = field(default_factory=list)
    retries: list[float] = field(default_factory=list)


class _CountingLock(Lock):
    """redis-py's lock, which tries every 0.1 seconds; counts the refused attempts."""

    refused = 0

    def do_acquire(self, token: Any) -> bool:
        taken = super().do_acquire(token)
        self.refused += not taken
        return bool(taken)


def advance(bench: Bench) -> list[Figure]:
    """Compare optimistic and pessimistic locking with one script, and our counter with that script."""
    each = 50 if bench.quick else 1000
    figures = []
    for threads in _THREADS:
        with EmbeddedServer() as server, Redis.from_url(server.url, max_connections=threads + 1) as client:
            figures += _with_threads(bench, client, threads, each)
    return figures


def _with_threads(bench: Bench, client: Redis, threads: int, each: int) -> list[Figure]:
    ways: dict[str, Way] = {
        "WATCH / MULTI": _watching(client),
        "redis-py Lock": _locking(client),
        "plain Lua": _plain_lua(client),
        "Counter.advance": _ours(client),
    }
    rows = {name: _Row() for name in ways}
    # One round is enough for the slow ways, which are only for comparison.
    for name in ("WATCH / MULTI", "redis-py Lock"):
        _measure(bench, client, name, ways[name], rows[name], threads, each)
        _show(bench, threads, name, rows[name])
    fast = ("plain Lua", "Counter.advance")
    # Small pieces in turn, so that both see the same disturbances; the median counts.
    pieces = 2 if bench.quick else 10
    ratios = []
    for _ in range(bench.rounds):
        measured = {name: _Row() for name in fast}
        for piece in range(pieces):
            for name in fast if piece % 2 else reversed(fast):
                _measure(bench, client, name, ways[name], measured[name], threads, max(each // pieces, 1000 // threads))
        for name in fast:
            rows[name].rates.append(median(measured[name].rates))
            rows[name].retries.append(sum(measured[name].retries))
            _show(bench, threads, name, rows[name])
        pairs = zip(measured["plain Lua"].rates, measured["Counter.advance"].rates, strict=True)
        ratios.append(median(plain / ours for plain, ours in pairs))
    return _figures(f"value = max(now, value + {_STEP}), {threads} threads x {each}", rows, tuple(ratios))


def _figures(load: str, rows: dict[str, _Row], ratios: tuple[float, ...]) -> list[Figure]:
    figures = [Figure(load, "time of Counter.advance, against plain Lua", ratios, "x", at_most=1.15)]
    for name, row in rows.items():
        goal = 0.0 if name == "Counter.advance" else None
        figures.append(Figure(load, name, tuple(row.rates), "ops/s"))
        figures.append(Figure(load, f"{name}, tried again", tuple(row.retries), at_most=goal))
    return figures


def _measure(bench: Bench, client: Redis, name: str, way: Way, row: _Row, threads: int, each: int) -> None:
    client.delete("value")
    way()  # a connection, the script
    ready = threading.Barrier(threads + 1)

    def work() -> tuple[list[int], int]:
        values, retries = [], 0
        ready.wait()
        for _ in range(each):
            value, again = way()
            values.append(value)
            retries += again
        return values, retries

    before = _calls(client)
    with ThreadPoolExecutor(threads) as pool:
        working = [pool.submit(work) for _ in range(threads)]
        ready.wait()
        began = time.perf_counter()
        done = [future.result() for future in working]
        took = time.perf_counter() - began
    values = [value for some, _ in done for value in some]
    if len(set(values)) != threads * each:
        bench.problem(f"{name}: {threads * each - len(set(values))} of {threads * each} slots were given out twice")
    row.rates.append(len(values) / took)
    # More scripts than calls are retries of the client.
    sent = _calls(client) - before
    row.retries.append(sum(again for _, again in done) + (sent - len(values) if sent else 0))


def _show(bench: Bench, threads: int, name: str, row: _Row) -> None:
    bench.show(f"{threads} threads, {name}: {row.rates[-1]:.0f}/s, tried again {row.retries[-1]:.0f} times")


def _calls(client: Redis) -> int:
    """Return the number of scripts that the server got; redis-py's lock sends one for each release."""
    statistics: Any = client.info("commandstats")
    return sum(int(statistics.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "eval"))


def _watching(client: Redis) -> Way:
    def way() -> tuple[int, int]:
        retries = 0
        pipe: Any
        with client.pipeline() as pipe:
            while True:
                try:
                    pipe.watch("value")
                    value = _next(pipe.get("value"))
                    pipe.multi()
                    pipe.set("value", value)
                    pipe.execute()
                except WatchError:
                    retries += 1
                else:
                    return value, retries

    return way


def _locking(client: Redis) -> Way:
    def way() -> tuple[int, int]:
        lock = _CountingLock(client, "lock", timeout=10)
        with lock:
            value = _next(client.get("value"))
            client.set("value", value)
        return value, lock.refused

    return way


def _next(value: Any) -> int:
    return max(time.time_ns() // 1000, int(value or 0) + _STEP)


def _plain_lua(client: Redis) -> Way:
    sha: Any = client.script_load(_PLAIN)

    def way() -> tuple[int, int]:
        value: Any = client.evalsha(sha, 1, "value", _STEP)
        return value, 0

    return way


def _ours(client: Redis) -> Way:
    counter = Counter(client, "value")

    def way() -> tuple[int, int]:
        return counter.advance(_STEP), 0

    counter.get_and_reset()
    if counter.advance(_STEP) >= counter.advance(_STEP):
        raise BenchmarkError("the counter does not advance")
    return way
