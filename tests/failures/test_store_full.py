"""The store is out of memory: parking is refused, blocked tasks wait unacknowledged, permits still go round."""

from __future__ import annotations

from typing import Any

import pytest

from celery_throttle.errors import StoreUnavailable
from tests.failures.tools import DOORS, LIMITED, counts, most_at_once, unacknowledged
from tests.support.journal import Journal
from tests.support.remote import throttle_in
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Workers

pytestmark = [
    pytest.mark.usefixtures("store"),
    pytest.mark.parametrize("store", [{"options": {"maxmemory-policy": "noeviction"}}], indirect=True),
]


def set_memory(state: State, most: int) -> None:
    """Let the store take writes that need memory only up to so many bytes; 0: any number."""
    with state.client() as client:
        client.config_set("maxmemory", most)


def test_permits_go_round_while_the_store_is_full(workers: Workers, journal: Journal, state: State) -> None:
    worker = workers.start(DOORS, concurrency=3)
    app = workers.app(DOORS)
    journal.wait_begun(app.hold.delay("first"))
    parked = app.hold.delay("parked")
    state.wait_parked(parked)

    set_memory(state, 1)
    waiting = [app.hold.delay(f"waiting {number}") for number in range(3)]
    worker.wait_for_log("the store refused a call")
    worker.wait_for_log("received", times=5)

    def refused() -> Any:
        said = throttle_in(app.app, worker)
        return said if said["groups"][0]["refuses"] and said["held_back"]["count"] == len(waiting) else None

    said = until(refused)
    assert said["groups"][0]["up"]
    assert said["groups"][0]["errors"] >= 1
    assert {(each["task_id"], each["why"]) for each in said["held_back"]["tasks"]} == {
        (each.id, "store refuses") for each in waiting
    }
    assert said["held_back"]["counts"] == {"store refuses": len(waiting)}
    journal.let_go("plain")
    app.plain.delay("plain").get(timeout=HANGS_AFTER)
    assert state.parked == [parked.id]
    until(lambda: len(unacknowledged(workers)) == len(waiting))  # plain: a moment after it began
    assert counts(journal) == {"first": 1, "plain": 1}

    journal.let_go("first")
    journal.wait_running(1, "parked")  # a release is never refused
    journal.let_go("parked")
    journal.wait_finished(1, "parked")
    (next_one,) = journal.wait_running(1)  # nor is a permit that is free
    assert next_one.label.startswith("waiting")

    set_memory(state, 0)
    until(lambda: len(state.parked) == 2)
    until(lambda: not unacknowledged(workers))  # a moment after they are parked
    journal.let_all_go()
    journal.wait_finished(6)
    state.wait_clean()
    assert set(counts(journal).values()) == {1}
    assert most_at_once(journal, ".hold") == 1


def test_worker_that_starts_and_stops_while_the_store_is_full(workers: Workers, journal: Journal, state: State) -> None:
    """It still declares its limits, and its tasks run; what has to go back waits until there is room.

    The broker has the one that is acknowledged late; the other is lost, and its result reports that.
    """
    set_memory(state, 1)
    worker = workers.start(LIMITED, concurrency=3)
    app = workers.app(LIMITED)
    journal.wait_begun(app.crowd.delay("first"))
    early, late = app.call.delay("early"), app.call_late.delay("late")
    second = app.app.send_task(app.crowd.name, ["second"])  # `delay` would look how many wait
    journal.wait_finished(1, "early")
    journal.wait_finished(1, "late")
    worker.wait_for_log("the store refused a call")
    worker.wait_for_log(rf"{second.id}\] received")

    worker.term()
    journal.let_go("first", "second")
    assert worker.wait() == 0
    _, told, rest = worker.log().partition("the store keeps no history of this worker's counts")
    assert told
    assert "Traceback" not in rest

    with pytest.raises(StoreUnavailable, match="its worker stopped before the store had its message"):
        early.get(timeout=HANGS_AFTER)
    set_memory(state, 0)
    journal.let_all_go()
    workers.start(LIMITED, concurrency=2)
    assert late.get(timeout=HANGS_AFTER) == "late after 0"
    journal.wait_finished(1, "second")
    state.wait_clean()
    assert counts(journal) == {"first": 1, "early": 1, "late": 2, "second": 1}
