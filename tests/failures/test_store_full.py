"""The store is out of memory: parking is refused, blocked tasks wait unacknowledged, permits still go round."""

from __future__ import annotations

from typing import Any

import pytest

from celery_throttle.errors import StoreUnavailable
from tests.failures.tools import AT_ONCE, DOORS, counts, most_at_once, unacknowledged
from tests.support.journal import Journal
from tests.support.remote import throttle_in
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers

pytestmark = [
    pytest.mark.usefixtures("store"),
    pytest.mark.parametrize("store", [{"options": {"maxmemory-policy": "noeviction"}}], indirect=True),
]

LIMITED = "tests.support.apps.limited"


def fill(state: State) -> None:
    with state.client() as client:
        client.config_set("maxmemory", 1)


def make_room(state: State) -> None:
    with state.client() as client:
        client.config_set("maxmemory", 0)


def test_permits_go_round_while_the_store_is_full(workers: Workers, journal: Journal, state: State) -> None:
    worker = workers.start(DOORS, concurrency=3)
    app = workers.app(DOORS)
    journal.wait_begun(app.hold.delay("first"))
    parked = app.hold.delay("parked")
    state.wait_parked(parked)

    fill(state)
    waiting = [app.hold.delay(f"waiting {number}") for number in range(3)]
    worker.wait_for_log("the store refused a call")
    worker.wait_for_log("received", times=5)

    def refused() -> Any:
        said = throttle_in(app.app, worker)
        return said if said["groups"][0]["refuses"] and said["held_back"]["count"] == len(waiting) else None

    said = until(refused, timeout=AT_ONCE)
    assert said["groups"][0]["up"]
    assert said["groups"][0]["errors"] >= 1
    assert {(each["task_id"], each["why"]) for each in said["held_back"]["tasks"]} == {
        (each.id, "store refuses") for each in waiting
    }
    assert said["held_back"]["counts"] == {"store refuses": len(waiting)}
    journal.let_go("plain")
    app.plain.delay("plain").get(timeout=AT_ONCE)
    assert state.parked == [parked.id]
    until(lambda: len(unacknowledged(workers)) == len(waiting), timeout=AT_ONCE)  # plain: a moment after it began
    assert counts(journal) == {"first": 1, "plain": 1}

    journal.let_go("first")
    journal.wait_running(1, "parked", timeout=AT_ONCE)  # a release is never refused
    journal.let_go("parked")
    journal.wait_finished(1, "parked")
    (next_one,) = journal.wait_running(1, timeout=AT_ONCE)  # nor is a permit that is free
    assert next_one.label.startswith("waiting")

    make_room(state)
    until(lambda: len(state.parked) == 2, timeout=AT_ONCE)
    until(lambda: not unacknowledged(workers), timeout=AT_ONCE)  # a moment after they are parked
    journal.let_all_go()
    journal.wait_finished(6, timeout=AT_ONCE)
    state.wait_clean()
    assert set(counts(journal).values()) == {1}
    assert most_at_once(journal, ".hold") == 1


def test_a_worker_that_starts_while_the_store_is_full(workers: Workers, journal: Journal, state: State) -> None:
    """It still declares its limits, and its tasks run; a task that has to be parked waits until there is room."""
    fill(state)
    worker = workers.start(DOORS, concurrency=2)
    app = workers.app(DOORS)
    journal.wait_begun(app.hold.delay("first"))
    app.hold.delay("second")
    worker.wait_for_log("the store refused a call")

    make_room(state)
    journal.let_all_go()

    journal.wait_finished(2, timeout=AT_ONCE)
    state.wait_clean()


def test_stopping_worker_with_tasks_that_cannot_go_back(workers: Workers, journal: Journal, state: State) -> None:
    """The broker has the one that is acknowledged late; the other is lost, and its result reports that."""
    worker = workers.start(LIMITED, concurrency=2)
    app = workers.app(LIMITED)
    fill(state)
    early, late = app.call.delay("early"), app.call_late.delay("late")
    journal.wait_finished(1, "early", timeout=AT_ONCE)
    journal.wait_finished(1, "late", timeout=AT_ONCE)
    worker.wait_for_log("the store refused a call")

    worker.term()
    worker.wait()

    with pytest.raises(StoreUnavailable, match="its worker stopped before the store had its message"):
        early.get(timeout=AT_ONCE)
    make_room(state)
    journal.let_go("early", "late")
    workers.start(LIMITED, concurrency=2)
    assert late.get(timeout=AT_ONCE) == "late after 0"
    state.wait_clean()
    assert counts(journal) == {"early": 1, "late": 2}
