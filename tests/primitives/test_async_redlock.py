"""A lock on the majority of several servers, on asyncio: the same votes, and the behaviour in tasks."""

from __future__ import annotations

import asyncio
import inspect
import time
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from celery_throttle.errors import ConfigurationError, LeaseLost, NotAcquired, StoreUnavailable
from celery_throttle.primitives import AsyncHeldRedlock, AsyncRedlock
from celery_throttle.primitives import lease as leases
from tests.primitives.cluster import NODE_TIMEOUT, PATIENCE
from tests.primitives.pace import renew_often, renewed_since

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from tests.primitives.cluster import Cluster


@pytest.fixture
def run(cluster: Cluster) -> Callable[..., None]:
    """Runs a scenario with a Redlock on the three servers."""

    async def with_clients(scenario: Callable[[AsyncRedlock], Awaitable[object]], node_timeout: float) -> None:
        async with AsyncExitStack() as stack:
            clients = [
                # Longer than any test may take: it is not the client that ends the wait for a server.
                await stack.enter_async_context(
                    AsyncRedis.from_url(server.url, socket_timeout=30, retry=Retry(NoBackoff(), 0))
                )
                for server in cluster.servers
            ]
            try:
                await scenario(AsyncRedlock(clients, prefix=cluster.prefix, node_timeout=node_timeout))
            finally:
                await give_up()

    def start(scenario: Callable[[AsyncRedlock], Awaitable[object]], node_timeout: float = PATIENCE) -> None:
        asyncio.run(asyncio.wait_for(with_clients(scenario, node_timeout), 60))

    return start


async def give_up() -> None:
    """End the background tasks, as long as their connections are there."""
    tasks = list(leases._background)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def so(condition: Callable[[], object]) -> None:
    """Return when that is true, or its result is."""
    while True:
        value = condition()
        if await value if inspect.isawaitable(value) else value:
            return
        await asyncio.sleep(0.01)


async def take(lock: AsyncRedlock, **options: Any) -> AsyncHeldRedlock:
    """Take a lock that must be free."""
    held = await lock.acquire("a", **options)
    assert held is not None
    return held


def test_all_servers_vote_for_one_holder(run: Any, cluster: Cluster) -> None:
    """Both kinds of clients get the same vote."""

    async def scenario(lock: AsyncRedlock) -> None:
        held = await take(lock, lease=100)
        assert 80 < held.lease_left < 100 * 0.99
        await so(lambda: cluster.owners() == [held.owner] * 3)
        assert await lock.acquire("a") is None
        assert cluster.redlock().acquire("a") is None
        assert await lock.acquire("b") is not None
        assert await held.renew()
        assert await held.release() is True
        assert await held.release() is True
        assert not held.lost
        await so(lambda: cluster.owners() == [None] * 3)
        with pytest.raises(LeaseLost, match="was released"):
            await held.renew()

    run(scenario)


def test_a_minority_is_not_enough_and_is_given_back(run: Any, cluster: Cluster) -> None:
    async def scenario(lock: AsyncRedlock) -> None:
        others = [cluster.each(index).acquire("a", owner="other") for index in (0, 1)]
        assert all(others)
        assert await lock.acquire("a", 600) is None
        await so(lambda: cluster.owners() == ["other", "other", None])

    run(scenario)


def test_a_majority_is_enough(run: Any, cluster: Cluster) -> None:
    async def scenario(lock: AsyncRedlock) -> None:
        cluster.each(2).acquire("a", owner="other")
        held = await take(lock)
        assert await held.renew()
        assert await held.release()
        assert cluster.owners() == [None, None, "other"]

    run(scenario)


def test_a_lease_that_the_vote_outlasts_is_none(run: Any, cluster: Cluster) -> None:
    async def scenario(lock: AsyncRedlock) -> None:
        lock._drift = 1.0
        assert await lock.acquire("a", 60) is None
        await so(lambda: cluster.owners() == [None] * 3)

    run(scenario)


def test_a_dead_server_does_not_matter(run: Any, cluster: Cluster) -> None:
    async def scenario(lock: AsyncRedlock) -> None:
        cluster.servers[0].kill()
        async with lock.hold("a", timeout=5) as held:
            assert await lock.acquire("a") is None
            assert await held.renew()
        await take(lock)

    run(scenario)


def test_missing_majority_has_no_answer(run: Any, cluster: Cluster) -> None:
    """And the grant of the only server is given back."""

    async def scenario(lock: AsyncRedlock) -> None:
        cluster.servers[0].kill()
        cluster.servers[1].kill()
        with pytest.raises(StoreUnavailable, match="2 of 3 servers did not answer"):
            await lock.acquire("a", 600)
        await so(lambda: cluster.each(2).locked_by("a") is None)

    run(scenario)


def test_frozen_server_delays_no_caller_and_gets_releases_later(run: Any, cluster: Cluster) -> None:
    async def scenario(lock: AsyncRedlock) -> None:
        cluster.servers[0].freeze()
        started = time.monotonic()
        for _ in range(3):
            async with lock.hold("a", timeout=0) as held:
                assert await held.renew()
        assert time.monotonic() - started < 10
        cluster.servers[0].thaw()
        await so(lambda: cluster.owners() == [None] * 3)
        await so(lambda: not leases._background)

    run(scenario)


def test_two_frozen_servers_cost_their_timeout_once(run: Any, cluster: Cluster) -> None:
    async def scenario(lock: AsyncRedlock) -> None:
        for server in cluster.servers[:2]:
            server.freeze()
        started = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await lock.acquire("a")
        assert NODE_TIMEOUT <= time.monotonic() - started < 10
        await so(lambda: all(node.silent_for() > NODE_TIMEOUT for node in lock.quorum._nodes[:2]))
        started = time.monotonic()
        with pytest.raises(StoreUnavailable):
            await lock.acquire("a")
        assert time.monotonic() - started < NODE_TIMEOUT, PATIENCE
        cluster.servers[0].thaw()
        cluster.servers[1].thaw()
        await so(lambda: not leases._background)
        assert cluster.owners() == [None] * 3

    run(scenario, NODE_TIMEOUT)


def test_a_server_that_was_away_gets_the_release(run: Any, cluster: Cluster) -> None:
    """Though it was out of reach when it was sent."""

    async def scenario(lock: AsyncRedlock) -> None:
        held = await take(lock, lease=60)
        await so(lambda: cluster.owners() == [held.owner] * 3)
        cluster.servers[0].kill()
        assert await held.release()
        assert leases._background
        cluster.servers[0].restart()
        await so(lambda: not leases._background)
        assert cluster.owners() == [None] * 3

    run(scenario)


def test_a_server_that_came_back_empty_takes_the_lock_again(run: Any, cluster: Cluster) -> None:
    """But two of them are a lost lock."""

    async def scenario(lock: AsyncRedlock) -> None:
        told: list[AsyncHeldRedlock] = []
        held = await take(lock, on_lost=told.append)
        await so(lambda: cluster.owners() == [held.owner] * 3)
        cluster.views[0].flushall()
        assert await held.renew()
        await so(lambda: cluster.owners() == [held.owner] * 3)
        cluster.views[0].flushall()
        cluster.views[1].flushall()
        with pytest.raises(LeaseLost):
            await held.renew()
        assert held.lost
        assert told == [held]

    run(scenario)


def test_renewal_by_a_task(run: Any, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    renew_often(monkeypatch)

    async def scenario(lock: AsyncRedlock) -> None:
        async with lock.hold("a", 30, renew=True) as held:
            await so(lambda: cluster.owners() == [held.owner] * 3)
            for index in (0, 1, 2):
                cluster.views[index].flushall()
                await so(lambda: cluster.owners() == [held.owner] * 3)
                await so(renewed_since(held))  # of one renewal only one server may have been empty
            assert held.lease_left > 20
            assert not held.lost

    run(scenario)


def test_waiting_ends_with_the_lease_of_the_other_or_the_timeout(run: Any, cluster: Cluster) -> None:
    async def scenario(lock: AsyncRedlock) -> None:
        cluster.redlock(lease=0.5).acquire("a")
        assert await lock.acquire("a", 600, blocking=True, timeout=20) is not None
        with pytest.raises(NotAcquired):
            async with lock.hold("a", timeout=0.1):
                pytest.fail("not held")

    run(scenario)


def test_cancelled_acquire_gives_back_its_grants(run: Any, cluster: Cluster) -> None:
    """One server has granted it, the others have not answered yet."""

    async def scenario(lock: AsyncRedlock) -> None:
        for server in cluster.servers[1:]:
            server.freeze()
        task = asyncio.create_task(lock.acquire("a", 600))
        await so(lambda: cluster.each(0).locked_by("a"))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for server in cluster.servers[1:]:
            server.thaw()
        await so(lambda: not leases._background)
        assert cluster.owners() == [None] * 3

    run(scenario)


def test_wrong_settings_are_refused(run: Any) -> None:
    async def scenario(lock: AsyncRedlock) -> None:
        with pytest.raises(ConfigurationError):
            await lock.acquire("a", 0)
        with pytest.raises(ConfigurationError):
            await lock.acquire("a", timeout=1)
        with pytest.raises(ConfigurationError, match="3 or more independent servers, got 2"):
            AsyncRedlock([AsyncRedis()] * 2)
        with pytest.raises(ConfigurationError, match="drift"):
            AsyncRedlock([AsyncRedis()] * 3, drift=1)

    run(scenario)
