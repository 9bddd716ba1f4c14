"""Signals: receivers get the events of tasks and limits, and a broken receiver stops nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest

from celery_throttle import ThrottleControl
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Worker, Workers

TOLD = "tests.support.apps.told"
NAME = f"{TOLD}.hold"
NEED = [{"limit": NAME, "key": None, "permits": 1}]


def heard(journal: Journal, *signals: str) -> list[tuple[str, str, dict[str, Any]]]:
    """The signals of these names, in the order in which they came."""
    return [
        (each["signal"], each["sender"], each["what"])
        for each in journal.events()
        if each["event"] == "heard" and each["signal"] in signals
    ]


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_parked_and_resumed(workers: Workers, journal: Journal, state: State, pool: str) -> None:
    worker = workers.start(TOLD, pool=pool, concurrency=2)
    app = workers.app(TOLD)
    journal.wait_begun(app.hold.delay("first"))
    second = app.hold.delay("second")
    state.wait_parked(1)
    parked = {"task_id": second.id, "task_name": NAME, "queue": "celery", "needs": NEED}
    until(lambda: heard(journal, "task_parked") == [("task_parked", NAME, parked)])
    assert not heard(journal, "task_resumed")

    journal.let_go("first", "second")
    assert second.get(timeout=20) == "second", "the receivers that raise stop nothing"
    for action in ("task_parked", "task_resumed"):
        record = {"event": "record", "action": action, "task_id": second.id, "task_name": NAME}
        until(lambda: any(record.items() <= each.items() for each in journal.events()))  # noqa: B023 - called at once
    ((_, sender, resumed),) = until(lambda: heard(journal, "task_resumed"))
    waited = resumed.pop("waited")
    assert (sender, resumed) == (NAME, parked)
    assert 0 < waited < 30
    assert "a receiver that is broken" in worker.log()


def run_first(workers: Workers, journal: Journal) -> tuple[Any, Any, Worker]:
    """Return the app, the run under a short lease, and its worker."""
    workers.conf["throttle_lease"] = 1
    worker = workers.start(TOLD, concurrency=1)
    app = workers.app(TOLD)
    first = journal.wait_begun(app.hold.delay("first"))
    return app, first, worker


def test_reclaimed(workers: Workers, journal: Journal) -> None:
    app, first, lost = run_first(workers, journal)
    lost.kill()
    other = workers.start(TOLD, concurrency=1)
    journal.let_go("next")
    app.hold.delay("next").get(timeout=20)
    assert heard(journal, "permit_reclaimed") == [("permit_reclaimed", NAME, {"task_id": first.id, "needs": NEED})]
    line = rf"reclaimed from task {NAME}\[{first.id}\]: worker \S*{lost.name}\S* is lost or cut off from the store"
    assert re.search(rf"Permit of limit {NAME} {line}, and the lease ended \d.* ago", other.log())


def test_reclaimed_by_the_reaper(workers: Workers, journal: Journal) -> None:
    app, first, lost = run_first(workers, journal)
    lost.kill()
    throttle = ThrottleControl(app.app)
    until(throttle.reap, timeout=20)
    assert heard(journal, "permit_reclaimed") == [("permit_reclaimed", NAME, {"task_id": first.id, "needs": NEED})]
    assert throttle.limit(app.hold).history().total.reclaimed == 1


def test_a_lost_lease(workers: Workers, journal: Journal) -> None:
    app, first, frozen = run_first(workers, journal)
    frozen.freeze()
    workers.start(TOLD, concurrency=1, queues="other")
    journal.wait_begun(app.hold.apply_async(["next"], queue="other"))
    frozen.thaw()
    lost = {"task_id": first.id, "task_name": NAME, "needs": NEED}
    until(lambda: heard(journal, "lease_lost") == [("lease_lost", NAME, lost)], timeout=20)
    journal.let_go("first", "next")


def test_duplicates_in_the_publisher_and_in_the_worker(workers: Workers, journal: Journal) -> None:
    app = workers.start_app(TOLD, concurrency=2)
    first = journal.wait_begun(app.once.delay("a"))
    app.once.apply_async(["a"], task_id="here")
    elsewhere = app.app.send_task(app.once.name, args=("a",))
    told = until(lambda: (found := heard(journal, "duplicate_dropped"))[1:] and found)
    # In any order: a publisher that has no answer in time leaves it to the worker.
    assert {(sender, what["task_id"], what["first_id"], what["verdict"]) for _, sender, what in told} == {
        (app.once.name, "here", first.id, "skip"),
        (app.once.name, elsewhere.id, first.id, "skip"),
    }
    journal.let_go("a")
    first.get(timeout=20)


def test_change_is_signalled(workers: Workers, journal: Journal) -> None:
    app = workers.start_app(TOLD, concurrency=1)
    limit = ThrottleControl(app.app).limit(app.hold)
    until(lambda: limit.status().declared)
    limit.override(3, until=60, by="ana", why="big day")
    assert limit.reset(by="bob")
    assert not limit.reset(by="bob"), "which changes nothing"
    changed: dict[str, Any] = {"limit": NAME, "key": None, "why": "", "until": None, "permits": None, "rates": []}
    assert [what for _, _, what in heard(journal, "limit_changed")] == [
        changed | {"action": "override", "permits": 3, "by": "ana", "why": "big day", "until": 60},
        changed | {"action": "reset", "by": "bob"},
    ]
