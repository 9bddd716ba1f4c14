"""Fixtures: both sides (threads, asyncio), clients and servers in trouble."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis import Redis

from celery_throttle.embedded import EmbeddedServer
from celery_throttle.primitives import IdentityLock, semaphore
from tests.primitives.faults import Resending
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


@pytest.fixture
def full(redis: Redis) -> Iterator[Callable[[], object]]:
    """Called, it lets the server take no more data until the test ends."""
    yield lambda: redis.config_set("maxmemory", 1)
    redis.config_set("maxmemory", 0)
