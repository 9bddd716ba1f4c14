"""Fixtures: both sides (threads, asyncio), clients in trouble, three servers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from celery_throttle.embedded import EmbeddedServer
from celery_throttle.primitives import IdentityLock, semaphore
from tests.conftest import new_server
from tests.primitives.cluster import Cluster
from tests.primitives.resending import Resending
from tests.primitives.sides import AsyncioSide, SyncSide


@pytest.fixture(params=[SyncSide, AsyncioSide], ids=["sync", "asyncio"])
def side(request: pytest.FixtureRequest) -> Iterator[SyncSide]:
    """Makes primitives for threads, or for asyncio, that are used alike."""
    running = request.param()
    yield running
    running.close()


@pytest.fixture
def aio_side() -> Iterator[AsyncioSide]:
    """For what tasks alone can do: be cancelled."""
    running = AsyncioSide()
    yield running
    running.close()


@pytest.fixture
def make(side: SyncSide, server: EmbeddedServer, redis: object) -> Callable[..., Any]:
    """``make("Counter", "orders")``: a primitive of either side on the emptied server."""
    assert redis  # which empties the server
    client = side.client(server.url)
    return lambda kind, /, *args, **options: side.make(kind, client, *args, **options)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(32) as threads:
        yield threads


@pytest.fixture
def only_hints(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let waiting callers not look by themselves."""
    monkeypatch.setattr("celery_throttle.primitives.lease._LOOK_AGAIN", 600.0)
    monkeypatch.setattr(semaphore, "STAY", 600.0)


@pytest.fixture
def resending(server: EmbeddedServer, redis: Redis) -> Iterator[Resending]:
    """A client on the emptied server that sends every call twice."""
    IdentityLock(redis).locked_by("loads")
    with Resending.from_url(server.url) as client:
        yield client


@pytest.fixture(scope="module")
def running() -> Iterator[list[EmbeddedServer]]:
    with ExitStack() as stack:
        yield [stack.enter_context(new_server()) for _ in range(3)]


@pytest.fixture
def cluster(running: list[EmbeddedServer]) -> Iterator[Cluster]:
    """Three servers; each test leaves them running or not, as it likes."""
    with ExitStack() as stack:

        def connect(server: EmbeddedServer, timeout: float) -> Redis:
            client: Redis = Redis.from_url(server.url, socket_timeout=timeout, retry=Retry(NoBackoff(), 0))
            stack.callback(client.close)
            return client

        for server in running:
            if server.running:
                server.thaw()
            else:
                server.restart()
        views = [connect(server, 5) for server in running]
        # Longer than any test may take: it is not the client that ends the wait for a server.
        clients, hasty = [connect(server, 30) for server in running], [connect(server, 0.05) for server in running]
        yield Cluster(running, clients, views, hasty)
        for server in running:
            if server.running:
                server.thaw()
