"""Waiting for an identity lock."""

from __future__ import annotations

import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from redis import Redis

from celery_throttle.primitives import IdentityLock, lock
from celery_throttle.primitives.driving import ask
from tests.primitives.hints import listening
from tests.primitives.pace import look_often
from tests.store.cost import commands
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.embedded import EmbeddedServer
    from celery_throttle.primitives import HeldLock
    from celery_throttle.store.scripts import Call


@pytest.fixture
def locks(redis: Redis) -> IdentityLock:
    return IdentityLock(redis)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as threads:
        yield threads


@pytest.fixture
def only_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waiting callers not look by themselves."""
    monkeypatch.setattr("celery_throttle.primitives.lease._LOOK_AGAIN", 600.0)


def waiting(redis: Redis, number: int) -> None:
    """Return when that many are waiting."""
    until(lambda: listening(redis) == number)


def got(future: Future[HeldLock | None]) -> HeldLock:
    held = future.result(20)
    assert held is not None
    return held


@pytest.mark.usefixtures("only_hints")
def test_release_wakes_the_waiting_caller(locks: IdentityLock, redis: Redis, pool: ThreadPoolExecutor) -> None:
    """By a hint, long before the lease ends."""
    held = got(pool.submit(locks.acquire, "a", 600))
    future = pool.submit(locks.acquire, "a", blocking=True, timeout=30)
    waiting(redis, 1)
    held.release()
    assert got(future).fencing_token > held.fencing_token
    waiting(redis, 0)


@pytest.mark.usefixtures("only_hints")
def test_operator_that_forgets_the_lock_wakes_too(locks: IdentityLock, redis: Redis, pool: ThreadPoolExecutor) -> None:
    held = got(pool.submit(locks.acquire, "a", 600))
    future = pool.submit(locks.acquire, "a", blocking=True, timeout=30)
    waiting(redis, 1)
    locks.forget("a", held.fencing_token)
    assert got(future).renew()


def test_end_of_a_lease_wakes_the_waiting_caller(locks: IdentityLock) -> None:
    """Without a release."""
    late = locks.acquire("a", 0.3)
    held = locks.acquire("a", blocking=True, timeout=20)
    assert late is not None
    assert held is not None
    assert held.fencing_token > late.fencing_token


@pytest.mark.usefixtures("only_hints")
def test_a_release_just_before_waiting_is_seen(
    locks: IdentityLock, redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the first attempt, before the subscription to the hints."""
    held = locks.acquire("a", 600)
    subscribe = redis.pubsub

    def release_and_subscribe(**options: bool) -> object:
        assert held is not None
        held.release()
        return subscribe(**options)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(redis, "pubsub", release_and_subscribe)
    assert locks.acquire("a", blocking=True, timeout=20) is not None


def test_a_hint_that_is_lost_costs_a_moment(
    locks: IdentityLock, redis: Redis, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock goes without a word, long before the lease that was seen would end."""
    look_often(monkeypatch)
    locks.acquire("a", 600)
    future = pool.submit(locks.acquire, "a", blocking=True, timeout=60)
    waiting(redis, 1)
    redis.delete(*redis.keys("*:lock:*"))
    assert got(future).renew()


def test_the_timeout_is_kept(locks: IdentityLock) -> None:
    locks.acquire("a")
    for timeout in (0, 0.01, 0.3):
        started = time.monotonic()
        assert locks.acquire("a", blocking=True, timeout=timeout) is None
        assert timeout <= time.monotonic() - started < timeout + 10


def test_a_socket_timeout_shorter_than_the_wait_does_not_matter(redis: Redis, server: EmbeddedServer) -> None:
    with Redis.from_url(server.url, socket_timeout=0.1) as client:
        locks = IdentityLock(client)
        locks.acquire("a")
        started = time.monotonic()
        assert locks.acquire("a", blocking=True, timeout=0.7) is None
        assert 0.7 <= time.monotonic() - started < 10
        assert redis.ping()


def test_waiting_costs_next_to_nothing(locks: IdentityLock, redis: Redis) -> None:
    """Polling would be a hundred attempts."""
    locks.acquire("a")
    with commands(redis) as calls:
        locks.acquire("a", blocking=True, timeout=1)
    assert calls["evalsha"] <= 5
    assert sum(calls.values()) < 40


@pytest.mark.parametrize("owner", [None, "me"])
def test_interrupted_caller_leaves_no_lock(
    locks: IdentityLock, monkeypatch: pytest.MonkeyPatch, owner: str | None
) -> None:
    """Unless it asked under a name that may have had the lock before."""

    async def ask_and_interrupt(client: object, call: Call) -> object:
        reply: object = await ask(client, call)
        if call.script.name == "lock/acquire":
            raise KeyboardInterrupt
        return reply

    monkeypatch.setattr(lock, "ask", ask_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        locks.acquire("a", 600, owner=owner)
    assert (locks.locked_by("a") is None) is (owner is None)


def test_no_connection_stays_behind(locks: IdentityLock, redis: Redis, pool: ThreadPoolExecutor) -> None:
    locks.acquire("a")
    futures = [pool.submit(locks.acquire, "a", blocking=True, timeout=0.3) for _ in range(4)]
    assert [future.result(20) for future in futures] == [None] * 4
    waiting(redis, 0)
    pooled = redis.connection_pool
    assert pooled._created_connections == len(pooled._available_connections)


def test_one_at_a_time_under_contention(locks: IdentityLock, pool: ThreadPoolExecutor) -> None:
    """Everybody gets it in the end, never two at once, each with a greater token than the one before."""
    inside = threading.Lock()
    tokens: list[int] = []

    def work() -> None:
        for _ in range(10):
            with locks.hold("a", timeout=60) as held:
                assert inside.acquire(blocking=False)
                tokens.append(held.fencing_token)
                inside.release()

    for future in [pool.submit(work) for _ in range(8)]:
        future.result(60)
    assert len(tokens) == 80
    assert tokens == sorted(set(tokens))
