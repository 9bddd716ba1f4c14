"""Fixtures for tests with real workers: letting tasks go, brokers that are not Redis, the store's state."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from celery_throttle.core.keys import Keys
from tests.support.waiting import until

if TYPE_CHECKING:
    from redis import Redis

    from tests.support.journal import Journal
    from tests.support.workers import Workers

FEATURES = "tests.support.apps.features"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown() -> None:
    """Collect results while their backend is there: on their way out they tell it that nobody waits any more."""
    gc.collect()


@dataclass
class State:
    """What is in the store."""

    client: Redis
    prefix: str = "throttle"

    def _keys(self) -> dict[str, str]:
        keys = Keys(self.prefix).all
        return {key.rpartition(":")[2]: key for key in keys}

    def parked(self) -> int:
        return int(self.client.zcard(self._keys()["parked"]))

    def held(self) -> list[str]:
        """The ids of the tasks that hold a permit."""
        found: Any = self.client.zrange(self._keys()["leases"], 0, -1)
        return [task.decode() for task in found]

    def used(self) -> dict[str, int]:
        found: Any = self.client.hgetall(self._keys()["used"])
        return {limit.decode(): int(count) for limit, count in found.items()}

    def lease_end(self, task_id: str) -> float:
        """When the lease of this task ends, in seconds of the store's clock; 0 if it has none."""
        return float(self.client.zscore(self._keys()["leases"], task_id) or 0.0) / 1000

    def wait_parked(self, count: int, timeout: float = 20.0) -> None:
        until(lambda: self.parked() == count, timeout=timeout, describe=lambda: f"parked: {self.parked()}")

    def empty(self) -> bool:
        """Whether nothing is left of any task."""
        keys = self._keys()
        return not self.client.exists(*(keys[name] for name in ("used", "leases", "records", "parked", "messages")))

    def wait_empty(self, timeout: float = 15.0) -> None:
        until(self.empty, timeout=timeout, describe=lambda: f"{self.parked()} parked, held: {self.held()}")


@pytest.fixture
def state(redis: Redis) -> State:
    """The store of the session's server."""
    return State(redis)


@pytest.fixture
def let_go(journal: Journal) -> Any:
    """``let_go("a", "b")`` ends the tasks that hold under these labels."""

    def let(*labels: str) -> None:
        for label in labels:
            Path(f"{journal.path}.{label}").touch()

    return let


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
