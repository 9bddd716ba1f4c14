"""Fixtures: a real server, real workers, a journal of runs.

``THROTTLE_TEST_SERVER=/usr/bin/redis-server`` runs the suite on that server instead of the wheel's.
"""

from __future__ import annotations

import functools
import gc
import importlib.metadata
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from celery import _state
from redis import Redis

# Last, so that the tests import an installed wheel; `tests` itself is found here, also by worker processes.
ROOT = str(Path(__file__).resolve().parents[1])
if ROOT not in sys.path:
    sys.path.append(ROOT)

from celery_throttle.embedded import EmbeddedServer  # noqa: E402 - needs the path above
from tests.store.terms_caller import TermsCaller  # noqa: E402
from tests.support.journal import VARIABLE, Journal  # noqa: E402
from tests.support.nursery import Nursery  # noqa: E402
from tests.support.shell import Shell  # noqa: E402
from tests.support.workers import Workers  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Mapping, Sequence

FORCED = "THROTTLE_TEST_SERVER"

# redis-py reads its version from disk for each connection, which takes longer than to connect.
importlib.metadata.version = functools.cache(importlib.metadata.version)

# A developer's own settings must not influence the tests. At import: before any Celery app is made.
for _name in [name for name in os.environ if name.startswith(("THROTTLE_", "CELERY_")) and name != FORCED]:
    del os.environ[_name]


def new_server(
    *, persistent: bool = False, options: Mapping[str, str | int | Sequence[str]] | None = None
) -> EmbeddedServer:
    """Return a server that has not been started, of the kind the suite runs on."""
    return EmbeddedServer(
        binary=os.environ.get(FORCED), prefer=("wheel", "path"), persistent=persistent, options=options
    )


@pytest.fixture(autouse=True)
def _shares_no_task() -> Iterator[None]:
    """A task that is made without ``shared=False`` comes to the apps of all tests after it."""
    finalizers: set[Any] = vars(_state)["_on_app_finalizers"]
    before = set(finalizers)
    yield
    shared = {each for each in finalizers - before if each.__module__ == "celery.app.base"}
    finalizers -= shared
    assert not shared, "it shares tasks with all tests after it: make them with shared=False"


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """One server for the whole session (each xdist process has its own). Use ``redis``, which empties it."""
    with new_server() as running:
        yield running


@pytest.fixture
def redis(server: EmbeddedServer) -> Iterator[Redis]:
    """A client of the session's server, emptied before the test. Replies are bytes."""
    with Redis.from_url(server.url) as client:
        client.flushall()  # except its scripts: a test of missing ones flushes those itself
        yield client


@pytest.fixture
def worker(redis: Redis) -> TermsCaller:
    """A worker of the queue ``q`` as the store sees it: without a process."""
    return TermsCaller(redis, "aaaaaaaa", "q")


@pytest.fixture
def own_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """A server of the test's own, to kill, freeze and restart; in a test that asks for it, ``workers`` use it.

    ``@pytest.mark.parametrize("own_server", [{"persistent": True}], indirect=True)`` gives it arguments.
    """
    with new_server(**getattr(request, "param", {})) as running:
        yield running


@pytest.fixture
def journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Journal:
    """The runs, as the tasks themselves noted them."""
    path = tmp_path / "journal.jsonl"
    monkeypatch.setenv(VARIABLE, str(path))  # for tasks that run in this process
    return Journal(path)


@pytest.fixture(scope="session")
def nursery() -> Iterator[Nursery | None]:
    """Where workers come from, on Linux; without one each is a command of its own."""
    if sys.platform != "linux":
        yield None
        return
    with Nursery() as running:
        yield running


@pytest.fixture
def workers(
    request: pytest.FixtureRequest, journal: Journal, tmp_path: Path, nursery: Nursery | None
) -> Iterator[Workers]:
    """Start real workers: ``workers.start(concurrency=4)``; they end with the test, also when it fails."""
    if "own_server" in request.fixturenames:
        running: EmbeddedServer = request.getfixturevalue("own_server")
    else:
        request.getfixturevalue("redis")  # empties it
        running = request.getfixturevalue("server")
    started = Workers(running.url, journal, tmp_path, nursery)
    try:
        yield started
    finally:
        started.end()


@pytest.fixture
def shell(server: EmbeddedServer, redis: object, tmp_path: Path, nursery: Nursery | None) -> Shell:
    """Run ``celery`` with the session's server as broker: ``shell.run("-A", "proj", "throttle", "status")``."""
    assert redis  # which empties the server
    return Shell(server.url, tmp_path, nursery)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests with real workers: ``pytest -m "not worker"`` leaves them out."""
    for item in items:
        if {"workers", "nursery"} <= set(getattr(item, "fixturenames", ())):
            item.add_marker("worker")


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    """Leave lasting objects out of every later collection: some tests collect when they end."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the ends of the worker logs with a failure: they are gone with the test's directory otherwise."""
    report = yield
    if report.failed:
        report.sections.extend(_logs(getattr(item, "funcargs", {})))
    return report


def _logs(fixtures: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    workers = fixtures.get("workers")
    if isinstance(workers, Workers):
        for worker in workers.started:
            yield f"log of {worker!r}", worker.tail()
        yield "journal", workers.journal.summary()
    server = fixtures.get("own_server")
    if isinstance(server, EmbeddedServer):
        yield f"log of {server!r}", "\n".join(server.log.splitlines()[-20:])
