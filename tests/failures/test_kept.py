"""Parked tasks are not safe for long, so the broker keeps the messages: after a loss, nothing runs twice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from celery_throttle.embedded import EmbeddedServer
from tests.conftest import new_server
from tests.failures.tools import DOORS, counts, cut, queued, redeliver, unacknowledged
from tests.support.journal import Journal
from tests.support.remote import throttle_in
from tests.support.sentinels import Watched, watched
from tests.support.state import State
from tests.support.waiting import always, until
from tests.support.workers import Worker, Workers

COUNT = 4


@pytest.fixture
def two(workers: Workers) -> Iterator[Watched]:
    """A store whose replica gets no writes."""
    with watched(new_server) as running:
        workers.conf |= {"throttle_park_durability": "replicas", "throttle_park_timeout": 0.3}
        workers.conf["throttle_url"] = running.url
        running.cut_off_replica()
        yield running


@pytest.fixture
def state(two: Watched) -> State:
    return State(lambda: two.primary.url)


def park(workers: Workers, journal: Journal, state: State) -> tuple[Worker, Any]:
    """Start a worker; one task runs, the others are parked behind it."""
    worker = workers.start(DOORS, concurrency=2)
    app = workers.app(DOORS)
    journal.wait_begun(app.hold.delay("first"))
    state.wait_parked(*(app.hold.delay(str(number)) for number in range(COUNT)))
    worker.wait_for_log("not as safe as throttle_park_durability = 'replicas' asks for")
    return worker, app


def check(workers: Workers, journal: Journal, state: State) -> None:
    """Each has run once, and nothing is left anywhere."""
    journal.wait_finished(1 + COUNT, task=".hold")
    until(lambda: not unacknowledged(workers), describe=lambda: unacknowledged(workers))
    assert set(counts(journal).values()) == {1}
    assert queued(workers) == 0
    state.wait_clean()


def test_messages_are_kept_until_their_tasks_have_run(
    own_server: EmbeddedServer, two: Watched, workers: Workers, journal: Journal, state: State
) -> None:
    """Also those that are delivered again while they wait. The replica, which lacks the runs, starts no second one."""
    worker, app = park(workers, journal, state)
    assert len(unacknowledged(workers)) == COUNT
    assert throttle_in(app.app, worker)["held_back"]["counts"] == {"not safe yet": COUNT}
    cut(own_server)
    worker.wait_for_log("Connection to broker lost")
    redeliver(workers)
    worker.wait_for_log("received", times=1 + 2 * COUNT)
    # The worker gives them back as well, so some may come twice.
    until(lambda: len(unacknowledged(workers)) == COUNT)
    journal.let_all_go()
    check(workers, journal, state)
    two.fail_over()
    always(lambda: set(counts(journal).values()) == {1}, seconds=2)


def test_its_worker_is_killed(workers: Workers, journal: Journal, state: State) -> None:
    """Other workers run its parked tasks, and the broker delivers them once more."""
    app = workers.start_app(DOORS, concurrency=2, queues="elsewhere")
    journal.wait_begun(app.hold.apply_async(["first"], queue="elsewhere"))
    worker = workers.start(DOORS, concurrency=2)
    state.wait_parked(*(app.hold.delay(str(number)) for number in range(COUNT - 1)))
    state.wait_parked(app.hold.delay("with a call after the others"))
    worker.kill()
    other = workers.start(DOORS, concurrency=2)
    journal.let_all_go()
    journal.wait_finished(1 + COUNT, task=".hold")
    redeliver(workers)
    other.wait_for_log("received", times=COUNT)
    until(lambda: not unacknowledged(workers))
    assert set(counts(journal).values()) == {1}
    assert queued(workers) == 0


def test_its_worker_stops(two: Watched, workers: Workers, journal: Journal, state: State) -> None:
    """The messages go back to the broker, and the next worker finds that they are parked."""
    worker, _ = park(workers, journal, state)
    worker.term()
    worker.wait_for_log(f"this worker stops, and {COUNT} parked tasks are not safe")
    journal.let_go("first")
    worker.wait()
    assert queued(workers) == COUNT
    next_one = workers.start(DOORS, concurrency=2)
    next_one.wait_for_log("received", times=COUNT)
    next_one.wait_for_log("not as safe as")
    assert len(unacknowledged(workers)) == COUNT
    two.replica.thaw()
    until(lambda: not unacknowledged(workers))
    next_one.wait_for_log("parked tasks are safe again")
    journal.let_all_go()
    check(workers, journal, state)


@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_other_pools(two: Watched, workers: Workers, journal: Journal, state: State, pool: str) -> None:
    """Those without an event loop find out when they look."""
    two.replica.thaw()
    app = workers.start_app(DOORS, concurrency=1, queues="elsewhere")
    journal.wait_begun(app.hold.apply_async(["first"], queue="elsewhere"))
    worker = workers.start(DOORS, pool=pool, concurrency=1)
    state.wait_parked(*(app.hold.delay(str(number)) for number in range(COUNT)))
    until(lambda: not unacknowledged(workers))
    assert "lost the store" not in worker.log()
    journal.let_all_go()
    check(workers, journal, state)
