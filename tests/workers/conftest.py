"""Fixtures for tests with real workers: letting tasks go, brokers that are not Redis, the store's state."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from tests.support import state as seen
from tests.support.collected import pytest_runtest_protocol, pytest_runtest_teardown  # noqa: F401 - hooks
from tests.support.waiting import until
from tests.support.workers import Workers

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


class State:
    """The content of a store, in numbers, as an operator sees it."""

    def __init__(self, client: Redis, prefix: str = "throttle") -> None:
        self.client, self.prefix = client, prefix
        name, _, group = prefix.partition(":")
        where = client.connection_pool.connection_kwargs
        url = f"redis://{where.get('host', '127.0.0.1')}:{where['port']}/{where.get('db', 0)}"
        self._seen = seen.State(lambda: url, throttle_prefix=name, throttle_group=group)

    def parked(self) -> int:
        return len(self._seen.parked)

    def has_second(self, result: Any) -> bool:
        """Whether another message of this task waits for the first to end."""
        return self._seen.has_second(result)

    def held(self) -> list[str]:
        """The ids of the tasks that hold a permit, or an identity lock."""
        return sorted(self._seen.holders)

    def used(self) -> dict[str, int]:
        return self._seen.used

    def lease_end(self, task_id: str) -> float:
        """When the lease of this task ends, in seconds of the store's clock; 0 if it has none."""
        left = self._seen.lease_left(task_id)
        seconds, microseconds = self.client.time()
        return float(seconds + microseconds / 1e6 + left) if left else 0.0

    def wait_parked(self, count: int, timeout: float = 20.0) -> None:
        until(lambda: self.parked() == count, timeout=timeout, describe=self._seen.describe)

    def empty(self) -> bool:
        """Return whether there are no holders and no parked tasks."""
        return not (self._seen.holders or self._seen.parked or self._seen.used)

    def wait_empty(self, timeout: float = 15.0) -> None:
        until(self.empty, timeout=timeout, describe=self._seen.describe)


@pytest.fixture
def state(redis: Redis) -> State:
    """The store of the session's server."""
    return State(redis)


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
