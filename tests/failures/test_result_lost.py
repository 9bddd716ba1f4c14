"""The body of a task that is remembered succeeds while the result backend is away: it has succeeded all the same."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from celery_throttle.embedded import EmbeddedServer
from celery_throttle.errors import ResultLost
from tests.failures.tools import AT_ONCE, counts, unacknowledged
from tests.support.journal import Journal
from tests.support.waiting import until
from tests.support.workers import Workers

ONCE = "tests.support.apps.once"
NAMES = ["hold_remembered_early", "hold_remembered"]


def send(workers: Workers, task: Any) -> Any:
    """Publish by a client that has no result backend, and checks nothing."""
    return Celery(broker=workers.broker, set_as_current=False).send_task(task.name, ("a",))


def succeed_without_backend(workers: Workers, journal: Journal, backend: EmbeddedServer, task: Any) -> Any:
    first = send(workers, task)
    journal.wait_running(1, "a")
    backend.kill()
    journal.let_go("a")
    journal.wait_finished(1, "a")
    return first


def is_done(task: Any) -> bool:
    lock = task.locked_by("a")
    return lock is not None and lock.state == "done"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent", "solo"])
def test_lost_result_is_remembered_and_duplicates_get_it(
    backend: EmbeddedServer, workers: Workers, journal: Journal, pool: str, name: str
) -> None:
    worker = workers.start(ONCE, pool=pool, concurrency=2)
    task = getattr(workers.app(ONCE), name)
    first = succeed_without_backend(workers, journal, backend, task)

    until(lambda: is_done(task), timeout=AT_ONCE)
    worker.wait_for_log(f"{first.id}. has succeeded, but its result is lost")
    until(lambda: not unacknowledged(workers), timeout=AT_ONCE)
    backend.restart()

    with pytest.raises(ResultLost, match=f"as {first.id}, but its result is lost"):
        task.delay("a").get(timeout=AT_ONCE)
    duplicate = task.AsyncResult(send(workers, task).id)  # a worker finds it
    with pytest.raises(ResultLost, match=f"as {first.id}, but its result is lost"):
        duplicate.get(timeout=AT_ONCE)
    assert counts(journal) == {"a": 1}


def test_it_succeeds_also_if_the_store_is_away_as_well(
    store: EmbeddedServer, backend: EmbeddedServer, workers: Workers, journal: Journal
) -> None:
    """The process that ran it cannot say so: its worker does, when the store is back."""
    worker = workers.start(ONCE, concurrency=1)
    task = workers.app(ONCE).hold_remembered
    send(workers, task)
    journal.wait_running(1, "a")
    store.kill()
    backend.kill()
    journal.let_go("a")
    worker.wait_for_log("cannot report at once", timeout=AT_ONCE)
    store.restart()
    backend.restart()

    until(lambda: is_done(task), timeout=AT_ONCE)
    until(lambda: not unacknowledged(workers), timeout=AT_ONCE)
    send(workers, task)
    until(lambda: not unacknowledged(workers), timeout=AT_ONCE)
    assert counts(journal) == {"a": 1}


def test_one_that_is_not_remembered_fails_as_without_us(
    backend: EmbeddedServer, workers: Workers, journal: Journal
) -> None:
    worker = workers.start(ONCE, concurrency=1)
    task = workers.app(ONCE).hold
    first = succeed_without_backend(workers, journal, backend, task)
    worker.wait_for_log("ended without an outcome|Task handler raised error|ConnectionError", timeout=AT_ONCE)
    until(lambda: task.locked_by("a") is None, timeout=AT_ONCE)
    assert f"{first.id}] has succeeded" not in worker.log()
