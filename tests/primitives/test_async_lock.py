"""The identity lock on asyncio: the same answers, and the behaviour in tasks."""

from __future__ import annotations

import asyncio
import gc
import inspect
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis as AsyncRedis

from celery_throttle.errors import ConfigurationError, LeaseLost, NotAcquired
from celery_throttle.primitives import AsyncHeldLock, AsyncIdentityLock, IdentityLock, lock
from celery_throttle.primitives import lease as leases
from celery_throttle.primitives.driving import ask
from tests.primitives.hints import channels, listening
from tests.primitives.pace import renew_often

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis import Redis

    from celery_throttle.embedded import EmbeddedServer
    from celery_throttle.store.scripts import Call


@pytest.fixture
def run(server: EmbeddedServer, redis: Redis) -> Callable[[Callable[[AsyncIdentityLock], Awaitable[object]]], None]:
    """Runs a scenario with locks on the emptied server."""
    assert redis.dbsize() == 0

    async def with_client(scenario: Callable[[AsyncIdentityLock], Awaitable[object]]) -> None:
        async with AsyncRedis.from_url(server.url) as client:
            await scenario(AsyncIdentityLock(client))

    def start(scenario: Callable[[AsyncIdentityLock], Awaitable[object]]) -> None:
        asyncio.run(asyncio.wait_for(with_client(scenario), 60))

    return start


@pytest.fixture
def sync(redis: Redis) -> IdentityLock:
    """The same locks without asyncio."""
    return IdentityLock(redis)


async def so(condition: Callable[[], object]) -> None:
    """Return when that is true, or its result is."""
    while True:
        value = condition()
        if await value if inspect.isawaitable(value) else value:
            return
        await asyncio.sleep(0.01)


def test_one_holder_for_both_kinds_of_callers(run: Any, sync: IdentityLock) -> None:
    async def scenario(locks: AsyncIdentityLock) -> None:
        async with locks.hold("a") as held:
            assert await locks.acquire("a") is None
            assert sync.acquire("a") is None
            assert await held.renew(90)
            assert await locks.locked_by("a") is not None
            assert held.lease_left > 60
        assert await locks.locked_by("a") is None
        assert await held.release() is True
        second = sync.acquire("a")
        assert second is not None
        assert second.fencing_token > held.fencing_token
        with pytest.raises(LeaseLost):
            await held.renew()

    run(scenario)


def test_loss_is_reported(run: Any) -> None:
    async def scenario(locks: AsyncIdentityLock) -> None:
        told: list[AsyncHeldLock] = []
        held = await locks.acquire("a", on_lost=told.append)
        assert held is not None
        assert await locks.forget("a", held.fencing_token)
        assert not await locks.forget("a", held.fencing_token + 1)
        with pytest.raises(LeaseLost):
            await held.renew()
        assert held.lost
        assert await held.release() is False
        assert told == [held]
        with pytest.raises(LeaseLost):
            async with locks.hold("a") as held:
                await locks.forget("a", held.fencing_token)
        with pytest.raises(KeyError):  # noqa: PT012 - what happens in the block is the test
            async with locks.hold("a") as held:
                await locks.forget("a", held.fencing_token)
                raise KeyError

    run(scenario)


def test_waiting(run: Any, redis: Redis) -> None:
    async def scenario(locks: AsyncIdentityLock) -> None:
        held = await locks.acquire("a", 600)
        assert held is not None
        started = asyncio.get_running_loop().time()
        assert await locks.acquire("a", blocking=True, timeout=0.3) is None
        assert 0.3 <= asyncio.get_running_loop().time() - started < 10
        with pytest.raises(NotAcquired):
            async with locks.hold("a", timeout=0):
                pytest.fail("not held")
        waiting = [asyncio.create_task(locks.acquire("a", blocking=True)) for _ in range(3)]
        await so(lambda: listening(redis) == 3)
        tokens = [held.fencing_token]
        while waiting:
            await held.release()
            (done, *_), rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            got = done.result()
            assert got is not None
            held, waiting = got, list(rest)
            tokens.append(held.fencing_token)
        assert tokens == sorted(set(tokens))

    run(scenario)


def test_renewal_by_a_task(run: Any, redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    renew_often(monkeypatch)

    async def scenario(locks: AsyncIdentityLock) -> None:
        key = locks._calls.key("a")
        async with locks.hold("a", 30, renew=True) as held:
            for _ in range(5):
                redis.pexpire(key, 20_000)
                await so(lambda: redis.pttl(key) > 20_000)
            assert held.lease_left > 20
            assert not held.lost
        await so(lambda: not leases._background)
        assert not held.lost

    run(scenario)


def test_renewal_ends_with_the_last_reference(run: Any) -> None:
    async def scenario(locks: AsyncIdentityLock) -> None:
        held = await locks.acquire("a", 0.3, renew=True)
        gone = weakref.ref(held)
        del held
        gc.collect()
        assert gone() is None
        await so(lambda: not leases._background)

    run(scenario)


def test_renewal_reports_a_lock_that_was_taken_away(run: Any) -> None:
    async def scenario(locks: AsyncIdentityLock) -> None:
        told: list[AsyncHeldLock] = []
        held = await locks.acquire("a", 0.6, renew=True, on_lost=told.append)
        assert held is not None
        await locks.forget("a", held.fencing_token)
        await so(lambda: told)
        assert held.lost
        await so(lambda: not leases._background)

    run(scenario)


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The replies to acquires, which arrive here and no further."""
    replies: list[object] = []

    async def ask_and_wait(client: object, call: Call) -> object:
        reply: object = await ask(client, call)
        if isinstance(client, AsyncRedis) and call.script.name == "lock/acquire":
            replies.append(reply)
            await asyncio.sleep(600)
        return reply

    monkeypatch.setattr(lock, "ask", ask_and_wait)
    return replies


async def cancel(task: asyncio.Task[Any]) -> None:
    """Cancel a task and wait for its end."""
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_cancelled_acquire_gives_back_its_lock(run: Any, sync: IdentityLock, unread: list[object]) -> None:
    async def scenario(locks: AsyncIdentityLock) -> None:
        task = asyncio.create_task(locks.acquire("a", 600))
        await so(lambda: unread)
        assert sync.locked_by("a") is not None
        await cancel(task)
        await so(lambda: sync.locked_by("a") is None)

    run(scenario)


def test_cancelled_acquire_leaves_the_lock_of_its_owner(run: Any, sync: IdentityLock, unread: list[object]) -> None:
    """It asked again under the name of the holder."""

    async def scenario(locks: AsyncIdentityLock) -> None:
        held = sync.acquire("a", 60, owner="me")
        task = asyncio.create_task(locks.acquire("a", 600, owner="me"))
        await so(lambda: unread)
        await cancel(task)
        await so(lambda: not leases._background)
        assert held is not None
        assert held.renew()

    run(scenario)


def test_a_cancelled_wait_leaves_the_lock_to_others(run: Any, redis: Redis) -> None:
    async def scenario(locks: AsyncIdentityLock) -> None:
        held = await locks.acquire("a", 600)
        assert held is not None
        task = asyncio.create_task(locks.acquire("a", blocking=True))
        await so(lambda: channels(redis))
        await cancel(task)
        assert await held.renew()
        await held.release()
        assert await locks.acquire("a") is not None

    run(scenario)


def test_a_cancelled_block_releases(run: Any) -> None:
    async def scenario(locks: AsyncIdentityLock) -> None:
        entered = asyncio.Event()

        async def work() -> None:
            async with locks.hold("a", 600):
                entered.set()
                await asyncio.sleep(600)

        task = asyncio.create_task(work())
        await entered.wait()
        await cancel(task)
        assert await locks.locked_by("a") is None

    run(scenario)


def test_a_cancelled_release_gives_back_all_the_same(run: Any) -> None:
    async def scenario(locks: AsyncIdentityLock) -> None:
        held = await locks.acquire("a", 600)
        assert held is not None
        await locks._client.connection_pool.disconnect()  # so that it has to connect first
        task = asyncio.create_task(held.release())
        await asyncio.sleep(0)
        await cancel(task)
        await so(lambda: not leases._background)
        assert await locks.locked_by("a") is None
        assert await held.release()

    run(scenario)


def test_wrong_arguments_are_refused(run: Any) -> None:
    async def scenario(locks: AsyncIdentityLock) -> None:
        with pytest.raises(ConfigurationError):
            await locks.acquire("a", 0)
        with pytest.raises(ConfigurationError):
            await locks.acquire("a", timeout=1)
        with pytest.raises(ConfigurationError):
            AsyncIdentityLock(locks._client, prefix="{")

    run(scenario)
