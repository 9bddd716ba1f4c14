"""A body keeps the main process of its worker from running for longer than a lease: nothing can renew it."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from typing import IO, Any

import pytest

from tests.failures.tools import AT_ONCE, SHORT_LEASE, WITHIN_LEASE, counts, redeliver, unacknowledged
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers

BLOCKING = "tests.support.apps.blocking"
#: The blocker of each pool: a greenlet that computes, and C that keeps the GIL.
BLOCKED = [("gevent", "python"), ("threads", "c"), ("solo", "c")]


class Locks:
    """The doors of the app `blocking`: each is shut until it is opened."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._files: dict[str, IO[bytes]] = {}

    def shut(self, *doors: str) -> None:
        for door in doors:
            file = self._files[door] = self._journal.path.with_name(f"door.{door}").open("wb")
            fcntl.flock(file, fcntl.LOCK_EX)

    def open(self, door: str) -> None:
        self._journal.path.with_name(f"door.{door}").unlink()
        self._files.pop(door).close()

    def open_all(self) -> None:
        for door in list(self._files):
            self.open(door)


@pytest.fixture
def locks(journal: Journal, workers: Workers) -> Iterator[Locks]:
    """Opened before the workers get their signal: C code sees none."""
    workers.conf["throttle_lease"] = SHORT_LEASE
    locks = Locks(journal)
    yield locks
    locks.open_all()


def start_two(workers: Workers, pool: str) -> Any:
    """Each has a queue of its own, too: a worker that is blocked takes messages all the same."""
    for name in ("w1", "w2"):
        workers.start(BLOCKING, pool=pool, queues=f"celery,{name}", concurrency=1 if pool == "solo" else 2)
    return workers.app(BLOCKING)


def run_after(task: Any, journal: Journal) -> None:
    """Publish for the worker that is not blocked, and wait: the tasks before it in line have gone."""
    (blocked,) = journal.running("a")
    queue = "w2" if blocked.worker.startswith("w1") else "w1"
    assert task.apply_async(("after",), queue=queue).get(timeout=WITHIN_LEASE) == "after 1"


def resume_parked(task: Any, state: State, label: str, how: str) -> Any:
    """Publish a task that is given to a worker from its line, so only the store has its message."""
    limit = state.limit("single")
    limit.pause()
    result = task.delay(label, how)
    state.wait_parked(result)
    limit.resume()
    return result


@pytest.mark.parametrize(("pool", "how"), BLOCKED)
def test_one_that_is_acknowledged_early_runs_once(
    workers: Workers, journal: Journal, state: State, locks: Locks, pool: str, how: str
) -> None:
    app = start_two(workers, pool)
    locks.shut("a.1", "a.2")
    result = resume_parked(app.early, state, "a", how)
    journal.wait_running(1, "a")

    run_after(app.early, journal)  # the lease is over
    locks.open("a.1")

    assert result.get(timeout=AT_ONCE) == "a 1"
    state.wait_clean()
    assert counts(journal) == {"a": 1, "after": 1}


@pytest.mark.parametrize("name", ["late", "order"])
@pytest.mark.parametrize(("pool", "how"), BLOCKED)
def test_a_success_ends_the_run_that_was_started_beside_it(
    workers: Workers, journal: Journal, state: State, locks: Locks, pool: str, how: str, name: str
) -> None:
    """Acknowledged late, so it runs once more; not again when that one loses its lease as well."""
    app = start_two(workers, pool)
    task = getattr(app, name)
    locks.shut("a.1", "a.2", "a.3")
    result = resume_parked(task, state, "a", how)
    journal.wait_started(2, "a", timeout=WITHIN_LEASE)

    locks.open("a.1")
    assert result.get(timeout=AT_ONCE) == "a 1"
    journal.wait_finished(1, "a")
    run_after(app.late, journal)  # the second lease is over
    (second,) = [each for each in workers.started if journal.running("a")[0].worker.startswith(each.name)]
    locks.open("a.2")

    journal.wait_finished(2, "a", timeout=AT_ONCE)
    second.wait_for_log(rf"lease_lost: no lease .*{result.id}. ran, not for the first time, .*\(2 s\).* {pool} pool")
    until(lambda: not state.holders, timeout=AT_ONCE)
    redeliver(workers)
    until(lambda: not unacknowledged(workers), timeout=AT_ONCE)
    assert counts(journal) == {"a": 2, "after": 1}


@pytest.mark.parametrize(("pool", "how"), BLOCKED)
def test_success_ends_a_task_that_went_back_in_line(
    workers: Workers, journal: Journal, state: State, locks: Locks, pool: str, how: str
) -> None:
    """Its lease ended, and no slot was free for it before it succeeded."""
    for queue in ("one", "two"):
        workers.start(BLOCKING, pool=pool, queues=queue, concurrency=1)
    app = workers.app(BLOCKING)
    locks.shut("a.1", "a.2")
    limit = state.limit("single")
    limit.pause()
    result = app.late.apply_async(("a", how), queue="one")
    state.wait_parked(result)
    limit.resume()
    journal.wait_running(1, "a")
    app.late.apply_async(("after",), queue="two").get(timeout=WITHIN_LEASE)
    state.wait_parked(result)  # it is the only consumer of its queue

    locks.open("a.1")

    assert result.get(timeout=AT_ONCE) == "a 1"
    state.wait_clean()
    assert counts(journal) == {"a": 1, "after": 1}
