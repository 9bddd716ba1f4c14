"""The identity lock: identities, fencing tokens, owners, and an operator that takes a lock away.

What holds for permits, too, is in test_lease.py.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import OutOfMemoryError

from celery_throttle.embedded import EmbeddedServer
from celery_throttle.errors import LeaseLost
from celery_throttle.primitives import IdentityLock, lock
from celery_throttle.primitives import lease as leases
from celery_throttle.primitives.driving import ask
from celery_throttle.store.scripts import Call
from tests.primitives.faults import Resending
from tests.primitives.pace import listening
from tests.primitives.sides import AsyncioSide
from tests.support.waiting import HANGS_AFTER, until

FENCE = "{throttle}:3:lock:fence"
HOSTILE: list[str | bytes] = [
    *("", "*", ":", "{x}", "a b\n\0c", "é", "\ud800", "x" * 1_000_000, b"\xff\0", "throttle:1:lock:fence", "fence")
]


@pytest.fixture
def locks(make: Callable[..., Any]) -> Any:
    return make("IdentityLock")


def take(locks: Any, identity: str | bytes = "a", **options: Any) -> Any:
    """Take a lock that must be free."""
    held = locks.acquire(identity, **options)
    assert held is not None
    return held


# -- owners and tokens -------------------------------------------------------------------------------------------------


def test_the_same_owner_has_the_same_grant(locks: Any) -> None:
    """And for as long as it asked for, but never shorter."""
    tokens = []
    for lease, left in ((10, 0), (100, 90), (10, 90)):
        tokens.append(take(locks, lease=lease, owner="me").fencing_token)
        assert locks.locked_by("a").lease_left > left
    assert len(set(tokens)) == 1
    assert locks.acquire("a", owner="m") is None


def test_a_name_used_again_is_another_grant(locks: Any) -> None:
    """The owner alone is no proof, but the fencing token is."""
    late = take(locks, lease=0.05, owner="me")
    until(lambda: locks.locked_by("a") is None)
    held = take(locks, owner="me")
    with pytest.raises(LeaseLost):
        late.renew()
    assert late.release() is False
    assert held.release()


def test_tokens_grow_though_the_clock_is_set_back(locks: Any, redis: Redis) -> None:
    """The last token is ahead of the time: exactly one more, though it needs all digits."""
    redis.set(FENCE, 8_000_000_000_000_001)
    assert take(locks, "a").fencing_token == 8_000_000_000_000_002
    assert take(locks, "b").fencing_token == 8_000_000_000_000_003


# -- identities and keys -----------------------------------------------------------------------------------------------


def test_hostile_identities_do_not_meet(locks: Any, redis: Redis) -> None:
    """Each has its own lock, and no key grows with it."""
    tokens = {take(locks, identity).fencing_token for identity in HOSTILE}
    assert len(tokens) == len(HOSTILE)
    assert {len(key) for key in redis.scan_iter()} <= {len("{throttle}:3:lock:") + 64, len(FENCE)}
    assert all(locks.acquire(identity) is None for identity in HOSTILE)
    assert locks.acquire("é".encode()) is None, "text is its bytes"


def test_keys_begin_with_the_prefix_and_all_but_one_end(make: Callable[..., Any], redis: Redis) -> None:
    locks = make("IdentityLock")
    take(locks).release()
    locks.forget("a", take(locks).fencing_token)
    take(locks)
    keys = list(redis.scan_iter())
    assert len(keys) == 4
    assert all(key.startswith(b"{throttle}:3:lock:") for key in keys)
    assert [key for key in keys if redis.pttl(key) < 0] == [FENCE.encode()]
    take(make("IdentityLock", prefix="other"))


# -- forgetting --------------------------------------------------------------------------------------------------------


def test_forgetting_takes_only_the_grant_that_was_shown(locks: Any, redis: Redis, resending: Resending) -> None:
    """Also if the reply is lost. No message has all of an identity of a megabyte."""
    identity = "x" * 1_000_000
    held, other = take(locks, identity), take(locks, "b")
    assert not locks.forget(identity, other.fencing_token)
    assert held.renew()
    assert IdentityLock(resending).forget(identity, held.fencing_token)
    assert IdentityLock(redis).locked_by(identity) is None
    assert other.renew()
    assert len(repr(held)) < 200
    with pytest.raises(LeaseLost) as error:
        held.renew()
    assert len(str(error.value)) < 300
    assert held.lost
    assert held.release() is False


# -- waiting -----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("only_hints")
def test_a_release_just_before_waiting_is_seen(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """After the first attempt, before the subscription to the hints."""
    locks = IdentityLock(redis)
    held = take(locks, lease=600)
    subscribe = redis.pubsub

    def release_and_subscribe(**options: bool) -> object:
        held.release()
        return subscribe(**options)  # type: ignore[no-untyped-call]

    monkeypatch.setattr(redis, "pubsub", release_and_subscribe)
    assert take(locks, blocking=True, timeout=HANGS_AFTER)


def test_no_connection_stays_behind(redis: Redis, pool: ThreadPoolExecutor) -> None:
    locks = IdentityLock(redis)
    take(locks)
    futures = [pool.submit(locks.acquire, "a", blocking=True, timeout=0.3) for _ in range(4)]
    assert [future.result(HANGS_AFTER) for future in futures] == [None] * 4
    until(lambda: listening(redis) == 0)
    pooled = redis.connection_pool
    assert pooled._created_connections == len(pooled._available_connections)


# -- trouble -----------------------------------------------------------------------------------------------------------


def test_cancelled_acquire_leaves_the_lock_of_its_owner(
    aio_side: AsyncioSide, redis: Redis, server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asked again under the name of the holder."""
    replies: list[object] = []

    async def ask_and_wait(client: Any, call: Call) -> None:
        replies.append(await ask(client, call))
        await asyncio.sleep(600)

    held = take(IdentityLock(redis), owner="me")
    locks = aio_side.make("IdentityLock", aio_side.client(server.url)).thing
    monkeypatch.setattr(lock, "ask", ask_and_wait)
    task = aio_side.start(lambda: locks.acquire("a", 600, owner="me"))
    until(lambda: replies)
    aio_side.cancel(task)
    monkeypatch.undo()
    until(lambda: not leases._background)
    assert held.renew()


@pytest.mark.parametrize("owner", [None, "me"])
def test_interrupted_caller_leaves_no_lock(redis: Redis, monkeypatch: pytest.MonkeyPatch, owner: str | None) -> None:
    """Unless it asked under a name that may have had the lock before."""

    async def ask_and_interrupt(client: object, call: Call) -> object:
        await ask(client, call)
        raise KeyboardInterrupt

    locks = IdentityLock(redis)
    monkeypatch.setattr(lock, "ask", ask_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        locks.acquire("a", 600, owner=owner)
    monkeypatch.undo()
    assert (locks.locked_by("a") is None) is (owner is None)


def test_a_full_server_lets_renew_and_release(redis: Redis, full: Callable[[], object]) -> None:
    """No caller gets a lock, but no holder loses one, and they can be given back."""
    locks = IdentityLock(redis)
    held, other = take(locks, "a"), take(locks, "b")
    full()
    with pytest.raises(OutOfMemoryError):
        locks.acquire("c")
    assert held.renew()
    assert held.release()
    assert locks.forget("b", other.fencing_token)
