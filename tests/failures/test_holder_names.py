"""The names of the tasks that hold permits, for a reader with the same app."""

from __future__ import annotations

from typing import Any

import pytest

from celery_throttle import ThrottleControl
from celery_throttle.embedded import EmbeddedServer
from tests.failures.tools import AT_ONCE, DOORS
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers

ONCE = "tests.support.apps.once"


def named(app: Any) -> dict[str, str | None]:
    return {each.task_id: each.task_name for each in ThrottleControl(app.app).holders()}


@pytest.mark.parametrize("store", [{"persistent": False}], indirect=True)
def test_of_tasks_that_share_a_limit(store: EmbeddedServer, workers: Workers, journal: Journal, state: State) -> None:
    workers.conf["throttle_lease"] = 3
    app = workers.start_app(DOORS, queues="celery,left,right", concurrency=3)
    first, own = app.left.delay("first"), app.hold.delay("own")
    journal.wait_running(2)
    assert named(app) == {first.id: app.left.name, own.id: app.hold.name}

    parked = app.right.delay("parked")
    state.wait_parked(parked)
    journal.let_go("first")
    journal.wait_running(1, "parked")
    both = {parked.id: app.right.name, own.id: app.hold.name}
    until(lambda: named(app) == both, timeout=AT_ONCE)
    assert ThrottleControl(app.app).explain(parked.id).task_name == app.right.name

    store.kill()
    store.restart()  # empty: its worker puts them back
    until(lambda: named(app) == both, timeout=AT_ONCE)
    journal.let_all_go()
    journal.wait_finished(3, timeout=AT_ONCE)

    with app.SHARED.acquire(app=app.app, timeout=AT_ONCE):
        assert list(named(app).values()) == [None]


def test_of_those_that_hold_a_lock_alone(workers: Workers, journal: Journal) -> None:
    app = workers.start_app(ONCE)
    held = journal.wait_begun(app.hold.delay("a"))
    assert named(app) == {held.id: app.hold.name}
    journal.let_go("a")
    journal.wait_finished(1)
