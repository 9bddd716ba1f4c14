"""The market of "Redis in Action", 4.4 and 6.2: many sellers and buyers at once, guarded in several ways."""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from celery import Celery
from redis import Redis, WatchError

from benchmarks.contenders import book_lock
from benchmarks.crew import Crew
from benchmarks.figures import Figure
from celery_throttle import Limit
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.primitives import FairSemaphore, IdentityLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from benchmarks.site import Bench

    #: Guards an item; yields the number of refused attempts.
    Guard = Callable[[str], AbstractContextManager[int]]

__all__ = ["market", "trade"]

_LISTERS = _BUYERS = 5
#: Most items in the market; few, so that two buyers often pick the same one.
_SHELF = 20
_PRICE = 10
_LEASE = 10.0


@dataclass
class _Row:
    """The figures of one way, a value for each round."""

    sales: list[float] = field(default_factory=list)
    retries: list[float] = field(default_factory=list)


def market(bench: Bench) -> list[Figure]:
    """Measure sales per second, and retries for each sale."""
    seconds = 0.5 if bench.quick else 3.0
    rows = {way: _Row() for way in _GUARDS}
    with EmbeddedServer() as server, Redis.from_url(server.url) as client, Crew(server.url, _LISTERS + _BUYERS) as crew:
        for number in range(-1, bench.rounds):
            for way in rows if number % 2 else reversed(rows):
                client.flushall()
                client.config_resetstat()
                done = crew.do(__name__, "trade", way=way, seconds=seconds if number >= 0 else 0.2)
                if number >= 0:
                    _note(bench, client, way, rows[way], done, seconds)
    load = f"market: {_LISTERS} list, {_BUYERS} buy, {_SHELF} items at a time"
    figures = []
    for way, row in rows.items():
        figures.append(Figure(load, way, tuple(row.sales), "sales/s"))
        figures.append(Figure(load, "  tried again, for each sale", tuple(row.retries)))
    return figures


def trade(client: Redis, *, number: int, start: float, way: str, seconds: float) -> tuple[int, int, int]:
    """List or buy for ``seconds``; return the numbers of listed items, sold items and retries. Runs in a crew."""
    guard = _GUARDS[way]
    act: Callable[[], tuple[bool, int]]
    if number < _LISTERS:
        list_one = _list_watching if guard is None else partial(_list_guarded, guard(client))
        act = _Lister(client, f"seller {number}", list_one)
    else:
        buy_one = _buy_watching if guard is None else partial(_buy_guarded, guard(client))
        act = _Buyer(client, f"buyer {number}", buy_one)
    time.sleep(max(start - time.monotonic(), 0))
    done = again = 0
    while time.monotonic() < start + seconds:
        success, retries = act()
        done += success
        again += retries
    return (done, 0, again) if number < _LISTERS else (0, done, again)


def _note(bench: Bench, client: Redis, way: str, row: _Row, done: list[Any], seconds: float) -> None:
    listed, sold, again = (sum(column) for column in zip(*done, strict=True))
    owned = sum(int(client.scard(key)) for key in client.scan_iter("inventory:buyer*"))
    earned = sum(int(client.hget(key, "funds") or 0) for key in client.scan_iter("users:seller*"))
    if (owned, earned, listed) != (sold, sold * _PRICE, sold + int(client.zcard("market:"))):
        bench.problem(f"{way}: {sold} sold, {owned} owned, {earned} earned, {listed} listed")
    row.sales.append(sold / seconds)
    row.retries.append(again / max(sold, 1))
    bench.show(f"{way}: {row.sales[-1]:.0f} sales/s, tried again {row.retries[-1]:.2f} times for each")


class _Lister:
    """Lists new items; waits while the market is full."""

    def __init__(self, client: Redis, seller: str, list_one: Callable[[Redis, str, str], tuple[bool, int]]) -> None:
        self._client, self._seller, self._list, self._made = client, seller, list_one, 0

    def __call__(self) -> tuple[bool, int]:
        if int(self._client.zcard("market:")) >= _SHELF:
            time.sleep(0.0005)
            return False, 0
        self._made += 1
        item = f"item {self._made}"
        self._client.sadd(f"inventory:{self._seller}", item)
        return self._list(self._client, self._seller, item)


class _Buyer:
    """Buys random items."""

    def __init__(self, client: Redis, buyer: str, buy_one: Callable[[Redis, str, str], tuple[bool, int]]) -> None:
        self._client, self._buyer, self._buy = client, buyer, buy_one

    def __call__(self) -> tuple[bool, int]:
        shelf: Any = self._client.zrange("market:", 0, _SHELF - 1)
        if not shelf:
            time.sleep(0.0005)
            return False, 0
        return self._buy(self._client, self._buyer, random.choice(shelf).decode())


# -- 4.4: WATCH and MULTI ----------------------------------------------------------------------------------------------


def _list_watching(client: Redis, seller: str, item: str) -> tuple[bool, int]:
    inventory, retries = f"inventory:{seller}", 0
    pipe: Any
    with client.pipeline() as pipe:
        while True:
            try:
                pipe.watch(inventory)
                if not pipe.sismember(inventory, item):
                    return False, retries
                pipe.multi()
                _move_to_market(pipe, seller, item)
                pipe.execute()
            except WatchError:
                retries += 1
            else:
                return True, retries


def _buy_watching(client: Redis, buyer: str, listed: str) -> tuple[bool, int]:
    retries = 0
    pipe: Any
    with client.pipeline() as pipe:
        while True:
            try:
                pipe.watch("market:", f"users:{buyer}")
                price = pipe.zscore("market:", listed)
                if price is None:
                    return False, retries
                pipe.multi()
                _move_to_buyer(pipe, buyer, listed, int(price))
                pipe.execute()
            except WatchError:
                retries += 1
            else:
                return True, retries


# -- 6.2: a lock -------------------------------------------------------------------------------------------------------


def _list_guarded(guard: Guard, client: Redis, seller: str, item: str) -> tuple[bool, int]:
    with guard(f"{seller}/{item}") as retries:
        if not client.sismember(f"inventory:{seller}", item):
            return False, retries
        pipe = client.pipeline()
        _move_to_market(pipe, seller, item)
        pipe.execute()
        return True, retries


def _buy_guarded(guard: Guard, client: Redis, buyer: str, listed: str) -> tuple[bool, int]:
    with guard(listed) as retries:
        price: Any = client.zscore("market:", listed)
        if price is None:
            return False, retries
        pipe = client.pipeline()
        _move_to_buyer(pipe, buyer, listed, int(price))
        pipe.execute()
        return True, retries


def _move_to_market(pipe: Any, seller: str, item: str) -> None:
    pipe.zadd("market:", {f"{seller}/{item}": _PRICE})
    pipe.srem(f"inventory:{seller}", item)


def _move_to_buyer(pipe: Any, buyer: str, listed: str, price: int) -> None:
    pipe.hincrby(f"users:{listed.partition('/')[0]}", "funds", price)
    pipe.hincrby(f"users:{buyer}", "funds", -price)
    pipe.sadd(f"inventory:{buyer}", listed)
    pipe.zrem("market:", listed)


def _coarse(client: Redis) -> Guard:
    return lambda _: book_lock(client, "market")


def _fine(client: Redis) -> Guard:
    return lambda item: book_lock(client, item)


def _identity_lock(client: Redis) -> Guard:
    locks = IdentityLock(client, lease=_LEASE)

    @contextmanager
    def guard(item: str) -> Iterator[int]:
        held = locks.acquire(item)
        refused = held is None
        if held is None:
            held = locks.acquire(item, blocking=True)
        assert held is not None
        with held:
            yield int(refused)

    return guard


def _fair_semaphore(client: Redis) -> Guard:
    @contextmanager
    def guard(item: str) -> Iterator[int]:
        with FairSemaphore(client, item, 1, lease=_LEASE).hold():
            yield 0

    return guard


def _limit(client: Redis) -> Guard:
    where = client.connection_pool.connection_kwargs
    app = Celery(broker=f"redis://{where['host']}:{where['port']}/{where.get('db') or 0}", set_as_current=False)
    items = Limit("item", 1, key="item")

    @contextmanager
    def guard(item: str) -> Iterator[int]:
        with items.acquire(key=item, app=app):
            yield 0

    return guard


#: None: WATCH and MULTI.
_GUARDS: dict[str, Callable[[Redis], Guard] | None] = {
    "WATCH / MULTI": None,
    "one lock for the market (the book's)": _coarse,
    "one lock for each item (the book's)": _fine,
    "IdentityLock for each item": _identity_lock,
    "FairSemaphore for each item": _fair_semaphore,
    "Limit for each item, outside of tasks": _limit,
}
