"""The fair semaphore on asyncio: the same line, and the behaviour in tasks."""

from __future__ import annotations

import asyncio
import gc
import inspect
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis as AsyncRedis

from celery_throttle.errors import ConfigurationError, LeaseLost, NotAcquired
from celery_throttle.primitives import (
    AsyncFairSemaphore,
    AsyncHeldPermit,
    FairSemaphore,
    semaphore,
)
from celery_throttle.primitives import lease as leases
from celery_throttle.primitives.driving import ask
from celery_throttle.primitives.semaphore_calls import IDLE
from tests.primitives.hints import channels
from tests.primitives.pace import end_permits, renew_often
from tests.support.waiting import until

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from redis import Redis

    from celery_throttle.embedded import EmbeddedServer
    from celery_throttle.store.scripts import Call


@pytest.fixture
def run(server: EmbeddedServer, redis: Redis) -> Callable[[Callable[[AsyncFairSemaphore], Awaitable[object]]], None]:
    """Runs a scenario with a semaphore of one permit on the emptied server."""
    assert redis.dbsize() == 0

    async def with_client(scenario: Callable[[AsyncFairSemaphore], Awaitable[object]]) -> None:
        async with AsyncRedis.from_url(server.url) as client:
            await scenario(AsyncFairSemaphore(client, "one", 1))

    def start(scenario: Callable[[AsyncFairSemaphore], Awaitable[object]]) -> None:
        asyncio.run(asyncio.wait_for(with_client(scenario), 60))

    return start


@pytest.fixture
def sync(redis: Redis) -> FairSemaphore:
    """The same semaphore without asyncio."""
    return FairSemaphore(redis, "one", 1)


@pytest.fixture
def only_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waiting callers not look by themselves."""
    monkeypatch.setattr("celery_throttle.primitives.lease._LOOK_AGAIN", 600.0)
    monkeypatch.setattr(semaphore, "STAY", 600.0)


async def so(condition: Callable[[], object]) -> None:
    """Return when that is true, or its result is."""
    while True:
        value = condition()
        if await value if inspect.isawaitable(value) else value:
            return
        await asyncio.sleep(0.01)


async def take(one: AsyncFairSemaphore, holder: str = "holder", lease: float = 600) -> AsyncHeldPermit:
    """Take a permit that must be free."""
    held = await one.acquire(holder, lease=lease, blocking=False)
    assert held is not None
    return held


def lose(client: Redis) -> None:
    """Let the store forget all permits."""
    client.delete(*(f"{{throttle}}:2:semaphore:{part}:one" for part in ("leases", "holders")))


def test_one_line_for_both_kinds(run: Any, sync: FairSemaphore) -> None:
    async def scenario(one: AsyncFairSemaphore) -> None:
        async with one.hold("web-1", lease=30) as held:
            assert (held.name, held.holder) == ("one", "web-1")
            assert repr(held).startswith("<AsyncHeldPermit 'one' ")
            assert await one.acquire(blocking=False) is None
            assert sync.acquire(blocking=False) is None
            assert await held.renew(90)
            (info,) = await one.holders()
            assert (info.holder, info.ticket) == ("web-1", held.ticket)
            assert info.lease_left > 60
            assert (await one.limit(), sync.limit()) == (1, 1)
            task = asyncio.create_task(one.acquire("async", 20))
            await so(one.waiting)
            thread = asyncio.create_task(asyncio.to_thread(sync.acquire, "sync", 20))
            await so(lambda: sync.waiting() == 2)
        first = await task
        assert first is not None
        assert not thread.done()
        await first.release()
        second = await thread
        assert second is not None
        assert held.ticket < first.ticket < second.ticket
        assert second.release()
        assert await one.holders() == ()
        with pytest.raises(LeaseLost):
            await held.renew()

    run(scenario)


@pytest.mark.usefixtures("only_hints")
def test_first_come_first_served(run: Any, redis: Redis) -> None:
    """By hints alone; and a greater limit wakes at once."""

    async def scenario(one: AsyncFairSemaphore) -> None:
        held = await take(one)
        waiting = []
        for number in range(6):
            waiting.append(asyncio.create_task(one.acquire(f"{number}", 60)))
            await so(lambda: len(channels(redis)) == number + 1)  # noqa: B023 - called at once
            await so(lambda: redis.zcard("{throttle}:2:semaphore:line:one") == number + 1)  # noqa: B023 - as above
        for number, task in enumerate(waiting[:3]):
            await held.release()
            got = await asyncio.wait_for(task, 20)
            assert got is not None
            assert got.holder == f"{number}"
            held = got
        await one.set_limit(3)
        done = [await asyncio.wait_for(task, 20) for task in waiting[3:5]]
        assert [got.holder for got in done if got is not None] == ["3", "4"]
        assert not waiting[5].done()
        await one.set_limit(None)
        await one.set_limit(4)
        assert await asyncio.wait_for(waiting[5], 20)

    run(scenario)


def test_the_timeout_is_kept(run: Any) -> None:
    async def scenario(one: AsyncFairSemaphore) -> None:
        await take(one)
        for timeout in (0, 0.3):
            started = asyncio.get_running_loop().time()
            assert await one.acquire(timeout=timeout) is None
            assert timeout <= asyncio.get_running_loop().time() - started < timeout + 5
            assert await one.waiting() == 0
        with pytest.raises(NotAcquired, match="No permit of 'one'"):
            async with one.hold(timeout=0):
                pytest.fail("not held")

    run(scenario)


def test_loss_is_reported(run: Any, redis: Redis) -> None:
    async def scenario(one: AsyncFairSemaphore) -> None:
        told: list[AsyncHeldPermit] = []
        held = await one.acquire(on_lost=told.append)
        assert held is not None
        lose(redis)
        with pytest.raises(LeaseLost):
            await held.renew()
        assert held.lost
        assert await held.release() is False
        assert told == [held]
        with pytest.raises(LeaseLost):
            async with one.hold():
                lose(redis)

    run(scenario)


def test_renewal_by_a_task(run: Any, redis: Redis, sync: FairSemaphore, monkeypatch: pytest.MonkeyPatch) -> None:
    renew_often(monkeypatch)

    async def scenario(one: AsyncFairSemaphore) -> None:
        async with one.hold(lease=30, renew=True) as held:
            for _ in range(5):
                end_permits(redis, "one")
                await so(sync.holders)
            assert held.lease_left > 20
            assert not held.lost
        await so(lambda: not leases._background)

    run(scenario)


def test_renewal_ends_with_the_last_reference(run: Any) -> None:
    async def scenario(one: AsyncFairSemaphore) -> None:
        held = await one.acquire(lease=0.3, renew=True)
        gone = weakref.ref(held)
        del held
        gc.collect()
        assert gone() is None
        await so(lambda: not leases._background)

    run(scenario)


def test_a_cancelled_wait_leaves_the_line(run: Any, sync: FairSemaphore, redis: Redis) -> None:
    async def scenario(one: AsyncFairSemaphore) -> None:
        held = await take(one)
        first = asyncio.create_task(one.acquire("first"))
        await so(lambda: channels(redis))
        second = asyncio.create_task(one.acquire("second"))
        await so(lambda: sync.waiting() == 2)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await so(lambda: sync.waiting() == 1)
        await held.release()
        got = await asyncio.wait_for(second, 20)
        assert got is not None
        assert got.holder == "second"

    run(scenario)


def test_cancelled_acquire_hands_on_its_permit(run: Any, sync: FairSemaphore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reply is on its way, or was not read yet."""
    granted: list[object] = []

    async def ask_and_wait(client: object, call: Call) -> object:
        reply: object = await ask(client, call)
        if isinstance(client, AsyncRedis) and call.script.name == "semaphore/acquire":
            granted.append(reply)
            await asyncio.sleep(600)
        return reply

    async def scenario(one: AsyncFairSemaphore) -> None:
        monkeypatch.setattr(semaphore, "ask", ask_and_wait)
        task = asyncio.create_task(one.acquire(lease=600))
        await so(lambda: granted)
        assert len(sync.holders()) == 1
        thread = asyncio.create_task(asyncio.to_thread(sync.acquire, "next", 20))
        await so(sync.waiting)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await thread

    run(scenario)


def test_a_cancelled_block_releases(run: Any) -> None:
    async def scenario(one: AsyncFairSemaphore) -> None:
        entered = asyncio.Event()

        async def work() -> None:
            async with one.hold(lease=600):
                entered.set()
                await asyncio.sleep(600)

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await one.holders() == ()

    run(scenario)


def test_never_more_than_the_limit_and_all_get_it(run: Any, redis: Redis) -> None:
    async def scenario(one: AsyncFairSemaphore) -> None:
        inside: list[int] = []
        await one.set_limit(3)

        async def work() -> None:
            for _ in range(10):
                async with one.hold(timeout=60) as held:
                    inside.append(held.ticket)
                    assert len(inside) <= 3
                    await asyncio.sleep(0)
                    inside.remove(held.ticket)

        await asyncio.gather(*(work() for _ in range(IDLE + 4)))
        await one.set_limit(None)
        await so(lambda: len(channels(redis)) <= IDLE)
        assert not [key for key in redis.scan_iter() if b":released:" not in key]

    run(scenario)
    until(lambda: not channels(redis), describe="They did not end with their client.")


def test_connections_lost_while_waiting(run: Any, redis: Redis) -> None:
    async def scenario(one: AsyncFairSemaphore) -> None:
        held = await take(one)
        task = asyncio.create_task(one.acquire("next", 60))
        await so(lambda: channels(redis))
        redis.client_kill_filter(_type="pubsub")
        await held.release()
        assert await asyncio.wait_for(task, 20)

    run(scenario)


def test_each_loop_has_its_own_connections(server: EmbeddedServer, redis: Redis) -> None:
    """A semaphore that is made at import, used by one loop after the other."""
    assert redis.dbsize() == 0
    client = AsyncRedis.from_url(server.url)
    one = AsyncFairSemaphore(client, "one", 1)

    async def scenario() -> None:
        held = await take(one)
        assert await one.acquire(timeout=0.05) is None
        await held.release()
        await client.connection_pool.disconnect()

    for _ in range(2):
        asyncio.run(scenario())


def test_wrong_arguments_are_refused(run: Any) -> None:
    async def scenario(one: AsyncFairSemaphore) -> None:
        with pytest.raises(ConfigurationError):
            await one.acquire(lease=0)
        with pytest.raises(ConfigurationError):
            await one.acquire(timeout=1, blocking=False)
        with pytest.raises(ConfigurationError):
            await one.set_limit(-1)
        with pytest.raises(ConfigurationError):
            AsyncFairSemaphore(one._client, "one", 0)

    run(scenario)
