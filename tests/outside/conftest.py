"""A limit, an app with the test's server as its store, and processes that hold or wait."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from celery import Celery
from redis import Redis

from celery_throttle import Limit
from celery_throttle.embedded import EmbeddedServer, bound_to_parent
from tests.support.workers import close

_PROGRAM = """
import sys, time
from celery import Celery
from celery_throttle import Limit
app = Celery(broker=sys.argv[1])
app.conf.throttle_lease = 1.0
print("asks", flush=True)
with Limit("gpu", 1).acquire(app=app):
    print("holds", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def app(server: EmbeddedServer, redis: Redis) -> Iterator[Celery]:  # noqa: ARG001 - which is empty
    """An app with the test's server as its store."""
    made = Celery("outside", broker=server.url, set_as_current=False)
    yield made
    close(made)


@pytest.fixture
def brief(app: Celery) -> Celery:
    """The same, with leases that end in a test if they are not renewed."""
    app.conf.throttle_lease = 1.0
    return app


@pytest.fixture
def gpu() -> Limit:
    """A limit with one permit."""
    return Limit("gpu", 1)


@pytest.fixture
def process(server: EmbeddedServer) -> Callable[[], Any]:
    """``with process() as other``: another process that wants the permit; ``other.stdout`` has ``asks``, ``holds``."""

    @contextmanager
    def start() -> Iterator[subprocess.Popen[str]]:
        with subprocess.Popen(
            bound_to_parent([sys.executable, "-c", _PROGRAM, server.url]), stdout=subprocess.PIPE, text=True
        ) as other:
            try:
                yield other
            finally:
                other.kill()

    return start
