"""A child has a job of which its worker has read no report yet, and the worker stops, or loses its broker connection.

The children are stopped (SIGSTOP) before the job is sent, so that they cannot report anything.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from celery_throttle.embedded import EmbeddedServer
from tests.failures.tools import DOORS, counts, cut, redeliver, unacknowledged
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Worker, Workers

#: A dropped job has its child wait for 30 s.
SOON = 20.0
#: A job that a pipe takes at once, and one of which it takes a part.
SIZE, LARGE = 40_000, 400_000


@contextmanager
def frozen(worker: Worker) -> Iterator[list[int]]:
    """Stop the children of a worker for a while; yield their pids."""
    pids = worker.children()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    yield pids
    for pid in worker.children():
        os.kill(pid, signal.SIGCONT)


def written(worker: Worker) -> int:
    """Return how many bytes the main process has written."""
    return int(Path(f"/proc/{worker.pid}/io").read_text().split()[3])


@contextmanager
def with_a_child(
    journal: Journal, state: State, worker: Worker, task: Any, how: str = "direct", size: int = SIZE
) -> Iterator[int]:
    """Have a child of the worker get a job while it cannot run, directly or out of the line; yield a child's pid."""
    options = {"headers": {"more": "x" * size}}
    if how == "parked":
        journal.wait_begun(task.delay("before"))
        state.wait_parked(task.apply_async(["sent"], **options))
        state.limit(task.name).pause()
        journal.let_go("before")
        until(lambda: not state.holders)
    with frozen(worker) as children:
        before = written(worker)
        if how == "parked":
            state.limit(task.name).resume()
        else:
            task.apply_async(["sent"], **options)
        until(lambda: written(worker) > before + SIZE)
        yield children[0]


@pytest.mark.parametrize("how", ["direct", "parked"])
@pytest.mark.parametrize("name", ["hold", "hold_late"])
def test_job_of_a_child_ends_in_a_stopping_worker(
    workers: Workers, journal: Journal, state: State, name: str, how: str
) -> None:
    worker = workers.start(DOORS, concurrency=1, options=["-l", "DEBUG"])
    app = workers.app(DOORS)
    journal.let_go("sent", "next")
    with with_a_child(journal, state, worker, getattr(app, name), how):
        worker.term()
        worker.wait_for_log("Worker: Stopping Pool")

    assert worker.wait(SOON) == 0
    workers.start(DOORS, concurrency=1)
    getattr(app, name).delay("next")
    journal.wait_finished(1, "next")
    state.wait_clean()
    until(lambda: not unacknowledged(workers))
    assert counts(journal) == ({"before": 1} if how == "parked" else {}) | {"sent": 1, "next": 1}
    assert [run.worker.partition("@")[0] for run in journal.runs("sent")] == [worker.name]


def test_rest_of_a_large_job_is_written_by_a_stopping_worker(workers: Workers, journal: Journal, state: State) -> None:
    worker = workers.start(DOORS, concurrency=1, options=["-l", "DEBUG"])
    app = workers.app(DOORS)
    journal.let_all_go()
    with with_a_child(journal, state, worker, app.hold, size=LARGE):
        worker.term()
        worker.wait_for_log("Worker: Stopping Consumer")

    assert worker.wait(SOON) == 0
    state.wait_clean()
    assert counts(journal) == {"sent": 1}


@pytest.mark.parametrize("how", ["direct", "parked"])
def test_child_that_dies_with_its_job_as_the_worker_stops(
    workers: Workers, journal: Journal, state: State, how: str
) -> None:
    worker = workers.start(DOORS, concurrency=1, options=["-l", "DEBUG"])
    app = workers.app(DOORS)
    journal.let_go("sent")
    with with_a_child(journal, state, worker, app.hold, how) as victim:
        worker.term()
        worker.wait_for_log("Worker: Stopping Pool")
        worker.kill_child(victim)

    assert worker.wait(SOON) == 0
    redeliver(workers)
    workers.start(DOORS, concurrency=1)
    journal.wait_finished(1, "sent")
    state.wait_clean()
    assert counts(journal)["sent"] == 1


def test_permit_of_a_lost_job_is_free_while_the_worker_goes_on_to_stop(
    redis: Redis, workers: Workers, journal: Journal, state: State
) -> None:
    """Another body keeps the worker; the lease is longer than any test waits."""
    worker = workers.start(DOORS, concurrency=2, options=["-l", "DEBUG"])
    app = workers.app(DOORS)
    app.plain.delay("longest")
    [longest] = journal.wait_running(1)
    with with_a_child(journal, state, worker, app.hold):
        worker.term()
        worker.wait_for_log("Worker: Stopping Pool")
        [victim] = set(worker.children()) - {longest.pid}
        worker.kill_child(victim)
    # The last BRPOP of a stopping worker takes a message that kombu does not read.
    until(lambda: not any("b" in client["flags"] for client in redis.client_list()))
    workers.start(DOORS, concurrency=1)
    app.hold.delay("next")

    journal.wait_running(1, "next")
    assert journal.running("longest")
    journal.let_all_go()
    assert worker.wait(SOON) == 0
    journal.wait_finished(3)
    redeliver(workers)
    journal.wait_finished(1, "sent")
    state.wait_clean()


@pytest.mark.parametrize("own_server", [{"persistent": True}], indirect=True)
class TestBrokerConnectionLost:
    """The store is the session's server; the broker is the test's own."""

    @pytest.fixture(autouse=True)
    def store_apart(self, redis: Redis, server: EmbeddedServer, workers: Workers) -> None:
        assert redis.ping()
        workers.backend = server.url
        workers.conf["throttle_url"] = server.url

    @pytest.mark.parametrize("dies", [False, True])
    @pytest.mark.parametrize("how", ["direct", "parked"])
    @pytest.mark.parametrize("name", ["hold", "hold_late"])
    def test_job_of_a_child_runs_once(
        self,
        own_server: EmbeddedServer,
        workers: Workers,
        journal: Journal,
        state: State,
        name: str,
        how: str,
        *,
        dies: bool,
    ) -> None:
        worker = workers.start(DOORS, concurrency=1, options=["-l", "DEBUG"])
        app = workers.app(DOORS)
        journal.let_go("sent", "next")
        with with_a_child(journal, state, worker, getattr(app, name), how) as child:
            cut(own_server)
            worker.wait_for_log("Connected to", times=2)
            if dies:
                worker.kill_child(child)
        redeliver(workers)

        getattr(workers.app(DOORS), name).delay("next")
        journal.wait_finished(1, "next")
        state.wait_clean()
        until(lambda: not unacknowledged(workers))
        assert counts(journal) == ({"before": 1} if how == "parked" else {}) | {"sent": 1, "next": 1}

    def test_child_with_a_job_gets_no_other(
        self, own_server: EmbeddedServer, workers: Workers, journal: Journal, state: State
    ) -> None:
        worker = workers.start(DOORS, concurrency=2, options=["-l", "DEBUG"])
        app = workers.app(DOORS)
        with with_a_child(journal, state, worker, app.hold):
            cut(own_server)
            worker.wait_for_log("Connected to", times=2)
        journal.wait_running(1, "sent")
        app = workers.app(DOORS)
        for number in range(8):  # sent to the child of the first, a task would wait for its end
            journal.let_go(f"plain {number}")
            app.plain.delay(f"plain {number}")
            journal.wait_finished(1, f"plain {number}")
        journal.let_all_go()
        state.wait_clean()
