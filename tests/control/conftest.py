"""An app, and workers of it without a pool."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery

from celery_throttle import Limit, Throttled
from tests.store.caller import KEYS
from tests.store.terms_caller import TermsCaller

if TYPE_CHECKING:
    from redis import Redis

    from celery_throttle.embedded import EmbeddedServer


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Collect results while their backend is there: on their way out they tell it that nobody waits any more."""
    gc.collect()


def make_app(url: str, **conf: Any) -> Any:
    """An app of a few limits, in the same place as the tests' `Caller`."""
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.update(throttle_prefix=KEYS.prefix, **conf)

    @app.task(base=Throttled, limit=Limit("api", 2), name="call", shared=False)
    def call() -> None: ...

    @app.task(base=Throttled, limit=Limit("tenant", 1, key="tenant_id"), name="serve", shared=False)
    def serve(tenant_id: object) -> None: ...

    @app.task(base=Throttled, singleton=True, unique_on=["order_id"], name="charge", shared=False)
    def charge(order_id: object, amount: object) -> None: ...

    return app


@pytest.fixture
def app(server: EmbeddedServer, redis: object) -> Any:
    assert redis  # which empties the server
    return make_app(server.url)


@pytest.fixture
def worker(redis: Redis) -> TermsCaller:
    """A worker of the queue ``q``."""
    return TermsCaller(redis, "aaaaaaaa", "q")
