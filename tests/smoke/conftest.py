"""pytest-celery's fixtures, as far as they would ask Docker for something."""

from __future__ import annotations

import gc
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from celery import Celery
from pytest_celery import CeleryBackendCluster, CeleryBrokerCluster, CeleryTestSetup, CeleryWorkerCluster
from pytest_celery.api import base

from tests.conftest import new_server
from tests.smoke.containers import LocalRedis, LocalWorker, ServerProcess, WorkerProcess
from tests.support.journal import VARIABLE, Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import _CELERY, QUICK, ROOT


class Setup(CeleryTestSetup):
    @classmethod
    def update_app_config(cls, app: Celery) -> None:
        """The workers get the configuration of the test's app, too: with leases for which a test can wait."""
        app.conf.update(
            broker_connection_retry_on_startup=True,
            throttle_lease=3,
            worker_hijack_root_logger=True,
            worker_prefetch_multiplier=1,
        )


@pytest.fixture(scope="session")
def docker_client() -> None:
    pytest.fail("A fixture asks for Docker: it has to be replaced here.")


@pytest.fixture(autouse=True)
def no_result_ends_within_a_call() -> Iterator[None]:
    """One that the collector finds there unsubscribes, and with redis-py 5 waits for that call's own lock: for ever."""
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at a worker's log often; pytest-celery looks once a second."""

    def wait(message: str, func: Callable[[], object], timeout: float = 30) -> None:
        until(func, timeout=timeout, describe=message)

    monkeypatch.setattr(base, "wait_for_callable", wait)


@pytest.fixture
def default_redis_broker() -> Iterator[LocalRedis]:
    """The broker, and by that the store; durable, as it should be."""
    with new_server(persistent=True) as server:
        yield LocalRedis(ServerProcess("broker", server))


@pytest.fixture
def default_redis_backend() -> Iterator[LocalRedis]:
    with new_server() as server:
        yield LocalRedis(ServerProcess("backend", server))


@pytest.fixture
def celery_broker_cluster(celery_redis_broker: Any) -> CeleryBrokerCluster:
    """Redis alone."""
    return CeleryBrokerCluster(celery_redis_broker)


@pytest.fixture
def celery_backend_cluster(celery_redis_backend: Any) -> CeleryBackendCluster:
    """Redis alone."""
    return CeleryBackendCluster(celery_redis_backend)


@pytest.fixture
def celery_setup_cls() -> type[Setup]:
    return Setup


@pytest.fixture
def default_worker_container_cls() -> type[LocalWorker]:
    return LocalWorker


@pytest.fixture
def default_worker_env(
    default_worker_container_cls: type[LocalWorker], celery_worker_cluster_config: dict[str, Any], journal: Journal
) -> dict[str, str]:
    env: dict[str, str] = default_worker_container_cls.initial_env(celery_worker_cluster_config)
    env.pop("PYTHONPATH")  # the volume's place in a container
    return {**os.environ, **env, VARIABLE: str(journal.path)}


@pytest.fixture
def celery_worker_cluster(
    default_worker_cls: Any,
    default_worker_app: Celery,
    default_worker_container_cls: type[LocalWorker],
    default_worker_initial_content: Mapping[str, bytes],
    default_worker_env: Mapping[str, str],
    tmp_path: Path,
) -> Iterator[CeleryWorkerCluster]:
    """Two workers of two processes each."""
    processes: list[WorkerProcess] = []
    try:
        for number in (1, 2):
            # pytest-celery identifies a worker by the first twelve characters of its container's id.
            host = f"smokehost{number:03}"
            directory = tmp_path / host
            for name, text in default_worker_initial_content.items():  # of the volume of a worker
                path = directory / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(text)
            asked = shlex.join(default_worker_container_cls.command("-c", "2", *QUICK)).replace("%h", host)
            command = [sys.executable, "-c", _CELERY, str(ROOT), *shlex.split(asked)[1:]]
            processes.append(WorkerProcess(host, command, directory, {**default_worker_env, "TMPDIR": str(directory)}))
        nodes = [default_worker_cls(default_worker_container_cls(each), default_worker_app) for each in processes]
        yield CeleryWorkerCluster(*nodes)
    finally:
        for each in processes:
            each.kill()


@pytest.fixture
def state(default_redis_broker: LocalRedis) -> State:
    """The store, as an operator sees it."""
    return State(lambda: default_redis_broker.url)
