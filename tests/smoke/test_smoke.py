"""Two workers, a broker and a backend, set up by pytest-celery: the cap, a kill, and restarts of all three."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.failures.tools import redeliver
from tests.smoke.conftest import LEASE
from tests.smoke.containers import will_be_killed
from tests.smoke.tasks import hold_late, pair
from tests.support.journal import Journal
from tests.support.state import State

#: For one lease, a look of a worker, and a busy machine.
WITHIN_LEASE = LEASE + 20.0
TIMEOUT = 30.0


@pytest.fixture
def running(celery_setup: Any) -> Any:
    """The set-up, with everything in it ready."""
    assert celery_setup.ready(ping=True, control=True, docker=True)
    return celery_setup


@pytest.mark.usefixtures("running")
def test_the_cap_holds_over_two_workers(journal: Journal, state: State) -> None:
    results = [pair.delay(str(number), 0.2) for number in range(8)]
    assert [result.get(timeout=TIMEOUT) for result in results] == [str(number) for number in range(8)]
    assert journal.max_running() == 2
    assert len(journal.runs()) == 8
    state.wait_clean()


def test_a_worker_is_killed(running: Any, journal: Journal, state: State, let_go: Callable[..., None]) -> None:
    """Its permit comes back within the lease, and its unacknowledged tasks run again."""
    first = hold_late.delay("first")
    (run,) = journal.wait_running(1, timeout=TIMEOUT)
    second = hold_late.delay("second")
    state.wait_parked(second)

    lost = next(worker for worker in running.worker_cluster if worker.hostname() == run.worker)
    will_be_killed(lost.container, journal)
    lost.kill()
    journal.wait_running(1, "second", timeout=WITHIN_LEASE)
    redeliver(SimpleNamespace(broker=running.broker.container.url))  # type: ignore[arg-type]
    let_go("first", "second")

    assert second.get(timeout=WITHIN_LEASE) == "second"
    assert first.get(timeout=WITHIN_LEASE) == "first"
    assert [run.label for run in journal.runs()] == ["first", "second", "first"]
    assert journal.runs()[-1].worker != lost.hostname()
    assert journal.max_running() == 1
    state.wait_clean()


def test_workers_are_restarted(running: Any, journal: Journal, state: State) -> None:
    """One after the other, while there is work: everything runs once, and no more than may at one time."""
    results = [pair.delay(str(number), 0.5) for number in range(12)]
    journal.wait_running(2, timeout=TIMEOUT)
    for worker in running.worker_cluster:
        worker.restart()
    for result in results:
        result.get(timeout=TIMEOUT)
    assert journal.max_running() == 2
    assert sorted(journal.order(), key=int) == [str(number) for number in range(12)]
    assert running.ready(ping=True, control=True, docker=True)
    state.wait_clean()


def test_redis_is_restarted(running: Any, journal: Journal, state: State, let_go: Callable[..., None]) -> None:
    """Broker and store in one: running tasks go on and keep their permits, parked ones run after that."""
    first = hold_late.delay("first")
    journal.wait_running(1, timeout=TIMEOUT)
    parked = []
    for label in ("second", "third"):
        parked.append(hold_late.delay(label))
        state.wait_parked(parked[-1])  # one by one: each worker takes one, and the line is by when they did

    running.broker.restart()
    let_go("first", "second", "third")

    assert [result.get(timeout=TIMEOUT) for result in (first, *parked)] == ["first", "second", "third"]
    assert [label for label in journal.order() if label != "first"] == ["second", "third"]
    assert journal.max_running() == 1
    state.wait_clean()
