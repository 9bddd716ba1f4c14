"""Fixtures of the locks on several servers."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from redis import Redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.conftest import new_server
from tests.primitives.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.embedded import EmbeddedServer


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
