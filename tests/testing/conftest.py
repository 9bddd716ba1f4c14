"""An app on the suite's server, with a worker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from celery_throttle.testing import ThrottleTest
from tests.testing.shop import make_shop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.embedded import EmbeddedServer
    from celery_throttle.testing.workers import Worker


@pytest.fixture
def kit(server: EmbeddedServer) -> Iterator[ThrottleTest]:
    """The kit for a new app."""
    with ThrottleTest(make_shop(), url=lambda: server.url) as made:
        yield made


@pytest.fixture
def tasks(kit: ThrottleTest) -> Any:
    """The tasks of the app, by their names without the name of the app."""
    return {name.partition(".")[2]: task for name, task in kit.app.tasks.items() if name.startswith("shop.")}


@pytest.fixture
def worker(kit: ThrottleTest) -> Iterator[Worker]:
    """A worker of the app."""
    with kit.run_worker() as made:
        yield made
