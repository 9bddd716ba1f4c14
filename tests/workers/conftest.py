"""Fixtures and helpers for tests with workers: their greeting, a broker that is not Redis, the store's state."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from celery_throttle.testing import ThrottleTest
from tests.support.collected import pytest_runtest_protocol, pytest_runtest_teardown  # noqa: F401 - hooks
from tests.support.kit import hints_only, throttle_celery_app, throttle_server  # noqa: F401 - fixtures
from tests.support.state import State
from tests.support.workers import Worker, Workers

FEATURES = "tests.support.apps.features"
ONCE = "tests.support.apps.once"


@pytest.fixture
def log_as_before() -> Iterator[None]:
    """A worker in this process sets up logging, for later tests too."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    yield
    root.setLevel(level)
    root.handlers[:] = handlers


@pytest.fixture
def kit(throttle: ThrottleTest, throttle_worker: object) -> ThrottleTest:  # noqa: ARG001
    """The test kit with a worker."""
    return throttle


@pytest.fixture
def state(redis: Redis) -> State:
    """The store of the session's server."""
    return State.at(redis)


def greeting(worker: Worker) -> str:
    """Return the line with which a worker names its throttled tasks and their store."""
    (line,) = worker.wait_for_log(r"INFO/MainProcess\] celery_throttle: .*throttled.*")
    return line.partition("celery_throttle: ")[2]


def use_filesystem_broker(workers: Workers, directory: Path) -> None:
    """Give the workers a broker that is not Redis; the store is named by ``throttle_url``."""
    folder, control = directory / "broker", directory / "control"
    for path in (folder, control):
        path.mkdir(exist_ok=True)
    workers.conf["throttle_url"] = workers.broker
    workers.conf["broker_transport_options"] = {
        "data_folder_in": str(folder),
        "data_folder_out": str(folder),
        "control_folder": str(control),
        "polling_interval": 0.05,
    }
    workers.broker = "filesystem://"
