"""Two workers, a broker and a backend, set up by pytest-celery: the cap holds while workers and Redis are restarted."""

from __future__ import annotations

from typing import Any

import pytest

from tests.smoke.tasks import hold_late, pair
from tests.support.journal import Journal
from tests.support.state import State

TIMEOUT = 30.0


@pytest.fixture
def running(celery_setup: Any) -> Any:
    """The set-up, with everything in it ready."""
    assert celery_setup.ready(ping=True, control=True, docker=True)
    return celery_setup


def test_workers_are_restarted(running: Any, journal: Journal, state: State) -> None:
    """One after the other, while there is work: everything runs once, and no more than may at one time."""
    results = [pair.delay(str(number), 0.5) for number in range(12)]
    journal.wait_running(2)
    for worker in running.worker_cluster:
        worker.restart()
    for result in results:
        result.get(timeout=TIMEOUT)
    assert journal.max_running() == 2
    assert sorted(journal.order(), key=int) == [str(number) for number in range(12)]
    assert running.ready(ping=True, control=True, docker=True)
    state.wait_clean()


def test_redis_is_restarted(running: Any, journal: Journal, state: State) -> None:
    """Broker and store in one: running tasks go on and keep their permits, parked ones run after that."""
    first = hold_late.delay("first")
    journal.wait_running(1)
    parked = []
    for label in ("second", "third"):
        parked.append(hold_late.delay(label))
        state.wait_parked(parked[-1])  # one by one: each worker takes one, and the line is by when they did

    running.broker.restart()
    journal.let_go("first", "second", "third")

    assert [result.get(timeout=TIMEOUT) for result in (first, *parked)] == ["first", "second", "third"]
    assert [label for label in journal.order() if label != "first"] == ["second", "third"]
    assert journal.max_running() == 1
    state.wait_clean()
