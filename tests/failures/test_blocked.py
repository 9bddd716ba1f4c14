"""A body keeps the main process of its worker from running for longer than a lease: nothing can renew it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from typing import IO, Any

import pytest

from tests.failures.tools import SHORT_LEASE, counts, redeliver, unacknowledged
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Workers

BLOCKING = "tests.support.apps.blocking"


class Doors:
    """The doors of the first three runs of "a" in the app `blocking`: each is shut until it is opened."""

    def __init__(self, journal: Journal) -> None:
        self._files: dict[int, IO[bytes]] = {}
        for run in (1, 2, 3):
            self._files[run] = journal.path.with_name(f"door.a.{run}").open("wb")
            fcntl.flock(self._files[run], fcntl.LOCK_EX)

    def open(self, *runs: int) -> None:
        for run in runs or tuple(self._files):
            self._files.pop(run).close()


@pytest.fixture
def doors(journal: Journal, workers: Workers) -> Iterator[Doors]:
    """Opened before the workers get their signal: C code sees none."""
    workers.conf["throttle_lease"] = SHORT_LEASE
    doors = Doors(journal)
    yield doors
    doors.open()


def start(workers: Workers, state: State, pool: str, name: str) -> tuple[Any, Any]:
    """Start two workers, and a task that is given to one of them from its line, so only the store has its message.

    Each worker has a queue of its own, too: a blocked worker still takes messages.
    """
    for queue in ("w1", "w2"):
        workers.start(BLOCKING, pool=pool, queues=f"celery,{queue}", concurrency=1 if pool == "solo" else 2)
    app = workers.app(BLOCKING)
    limit = state.limit("single")
    limit.pause()
    result = getattr(app, name).delay("a")
    state.wait_parked(result)
    limit.resume()
    return app, result


def run_after(task: Any, journal: Journal) -> None:
    """Publish for the worker that is not blocked, and wait: the tasks before it in line have gone."""
    (blocked,) = journal.running("a")
    queue = "w2" if blocked.worker.startswith("w1") else "w1"
    assert task.apply_async(("after",), queue=queue).get(timeout=HANGS_AFTER) == "after 1"


@pytest.mark.parametrize("pool", ["gevent", "threads", "solo"])
def test_one_that_is_acknowledged_early_runs_once(
    workers: Workers, journal: Journal, state: State, doors: Doors, pool: str
) -> None:
    app, result = start(workers, state, pool, "early")
    journal.wait_running(1, "a")

    run_after(app.early, journal)  # the lease is over
    doors.open(1)

    assert result.get(timeout=HANGS_AFTER) == "a 1"
    state.wait_clean()
    assert counts(journal) == {"a": 1, "after": 1}


@pytest.mark.parametrize("name", ["late", "order"])
@pytest.mark.parametrize("pool", ["gevent", "threads", "solo"])
def test_a_success_ends_the_run_that_was_started_beside_it(
    workers: Workers, journal: Journal, state: State, doors: Doors, pool: str, name: str
) -> None:
    """Acknowledged late, so it runs once more; not again when that one loses its lease as well."""
    app, result = start(workers, state, pool, name)
    journal.wait_started(2, "a")

    doors.open(1)
    assert result.get(timeout=HANGS_AFTER) == "a 1"
    journal.wait_finished(1, "a")
    run_after(app.late, journal)  # the second lease is over
    (second,) = [each for each in workers.started if journal.running("a")[0].worker.startswith(each.name)]
    doors.open(2)

    journal.wait_finished(2, "a")
    second.wait_for_log(rf"lease_lost: no lease .*{result.id}. ran, not for the first time, .*\(2 s\).* {pool} pool")
    until(lambda: not state.holders)
    redeliver(workers)
    until(lambda: not unacknowledged(workers))
    assert counts(journal) == {"a": 2, "after": 1}
