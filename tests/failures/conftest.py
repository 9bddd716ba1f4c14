"""Fixtures for the tests where something dies."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from celery_throttle.embedded import EmbeddedServer
from tests.conftest import new_server
from tests.failures.tools import give_up_soon
from tests.support.relay import Relay
from tests.support.state import State
from tests.support.workers import Workers


@pytest.fixture
def state(workers: Workers) -> State:
    """The workers' store, as an operator sees it."""
    return State(lambda: str(workers.conf.get("throttle_url", workers.broker)))


@pytest.fixture
def store(request: pytest.FixtureRequest, workers: Workers) -> Iterator[EmbeddedServer]:
    """A store apart from the broker, to kill, freeze and fill; durable unless parametrized otherwise."""
    with new_server(**getattr(request, "param", {"persistent": True})) as running:
        workers.conf["throttle_url"] = running.url
        yield running


@pytest.fixture
def backend(workers: Workers) -> Iterator[EmbeddedServer]:
    """A result backend apart from broker and store, which is given up soon."""
    with new_server() as running:
        workers.backend = running.url
        give_up_soon(workers)
        yield running


@pytest.fixture
def relay(store: EmbeddedServer) -> Iterator[Relay]:
    """In front of the store."""
    with Relay(store.port) as between:
        yield between
