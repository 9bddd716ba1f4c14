"""Semaphores and locks as context managers: ours, those of installed peers, and the recipes of a book."""

from __future__ import annotations

import time
import uuid
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from redis import WatchError

from celery_throttle.primitives import FairSemaphore, IdentityLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis import Redis

    #: Takes a client, a name and the number of permits; returns a function that makes the context manager.
    Contender = Callable[[Redis, str, int], Callable[[], AbstractContextManager[object]]]

__all__ = ["CONTENDERS", "book_lock", "contenders"]

#: Seconds between two attempts, for contenders without a wait of their own.
POLL = 0.01
_LEASE = 30.0


def contenders(limit: int) -> list[str]:
    """Return the names of the contenders that are installed and support this limit; ours first."""
    return [
        name
        for name, (module, most, _) in CONTENDERS.items()
        if limit <= most and (module is None or find_spec(module) is not None)
    ]


def _fair_semaphore(client: Redis, name: str, limit: int) -> Callable[[], AbstractContextManager[object]]:
    return partial(FairSemaphore(client, name, limit, lease=_LEASE).hold)


def _identity_lock(client: Redis, name: str, _: int) -> Callable[[], AbstractContextManager[object]]:
    return partial(IdentityLock(client, lease=_LEASE).hold, name)


def _redis_py(client: Redis, name: str, _: int) -> Callable[[], AbstractContextManager[object]]:
    return lambda: client.lock(name, timeout=_LEASE)


def _redis_py_often(client: Redis, name: str, _: int) -> Callable[[], AbstractContextManager[object]]:
    return lambda: client.lock(name, timeout=_LEASE, sleep=POLL)


def _python_redis_lock(client: Redis, name: str, _: int) -> Callable[[], AbstractContextManager[object]]:
    lock: Any = import_module("redis_lock").Lock
    return lambda: lock(client, name, expire=int(_LEASE))


def _pottery(client: Redis, name: str, _: int) -> Callable[[], AbstractContextManager[object]]:
    lock: Any = import_module("pottery").Redlock
    return lambda: lock(key=name, masters={client}, auto_release_time=_LEASE)


def _dramatiq(client: Redis, name: str, limit: int) -> Callable[[], AbstractContextManager[object]]:
    backend: Any = import_module("dramatiq.rate_limits.backends").RedisBackend(client=client)
    limiter: Any = import_module("dramatiq.rate_limits").ConcurrentRateLimiter(backend, name, limit=limit)

    @contextmanager
    def way() -> Iterator[None]:
        while True:
            with limiter.acquire(raise_on_failure=False) as acquired:
                if acquired:
                    yield
                    return
            time.sleep(POLL)

    return way


# -- the recipes of "Redis in Action", 6.2 and 6.3 ---------------------------------------------------------------------


@contextmanager
def book_lock(client: Redis, name: str, retry: float = 0.001) -> Iterator[int]:
    """6.2.5: a lock with a timeout, released with WATCH. Yields the number of refused attempts."""
    mine, refused = str(uuid.uuid4()), 0
    while not client.set(f"lock:{name}", mine, nx=True, ex=10):
        refused += 1
        time.sleep(retry)
    try:
        yield refused
    finally:
        _unlock(client, name, mine)


def _unlock(client: Redis, name: str, mine: str) -> None:
    pipe: Any
    with client.pipeline() as pipe:
        while True:
            try:
                pipe.watch(f"lock:{name}")
                if pipe.get(f"lock:{name}") == mine.encode():
                    pipe.multi()
                    pipe.delete(f"lock:{name}")
                    pipe.execute()
            except WatchError:
                continue
            return


def _book(client: Redis, name: str, limit: int) -> Callable[[], AbstractContextManager[object]]:
    """6.3.4: the fair semaphore, acquired under a lock."""
    owners, counter = f"{name}:owner", f"{name}:counter"

    def acquire() -> str | None:
        mine, now = str(uuid.uuid4()), time.time()
        pipe: Any = client.pipeline(True)
        pipe.zremrangebyscore(name, "-inf", now - _LEASE)
        pipe.zinterstore(owners, {owners: 1, name: 0})
        pipe.incr(counter)
        number = pipe.execute()[-1]
        pipe.zadd(name, {mine: now})
        pipe.zadd(owners, {mine: number})
        pipe.zrank(owners, mine)
        if pipe.execute()[-1] < limit:
            return mine
        release(mine)
        return None

    def release(mine: str) -> None:
        pipe: Any = client.pipeline(True)
        pipe.zrem(name, mine)
        pipe.zrem(owners, mine)
        pipe.execute()

    @contextmanager
    def way() -> Iterator[None]:
        while True:
            with book_lock(client, name):
                mine = acquire()
            if mine is not None:
                break
            time.sleep(POLL)
        try:
            yield
        finally:
            release(mine)

    return way


_MANY = 10**6
#: Name -> the module that it needs, the highest limit that it supports, the function that makes it.
CONTENDERS: dict[str, tuple[str | None, int, Contender]] = {
    "FairSemaphore": (None, _MANY, _fair_semaphore),
    "IdentityLock": (None, 1, _identity_lock),
    "dramatiq ConcurrentRateLimiter": ("dramatiq", _MANY, _dramatiq),
    "Redis in Action 6.3 (ZINTERSTORE)": (None, _MANY, _book),
    "redis-py Lock": (None, 1, _redis_py),
    "redis-py Lock, sleep=0.01": (None, 1, _redis_py_often),
    "python-redis-lock": ("redis_lock", 1, _python_redis_lock),
    "pottery Redlock, one server": ("pottery", 1, _pottery),
}
