"""The counts of limits that workers send to the store."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from celery_throttle import ThrottleControl
from celery_throttle.embedded import EmbeddedServer
from celery_throttle.store.history import Period
from tests.failures.tools import DOORS
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers

LIMITED = "tests.support.apps.limited"


def total(app: Any, task: Any) -> Period:
    return ThrottleControl(app.app).limit(task).history().total


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_counts_arrive_at_the_latest_with_the_end_of_a_worker(
    workers: Workers, journal: Journal, state: State, pool: str
) -> None:
    worker = workers.start(DOORS, pool=pool, concurrency=2)
    app = workers.app(DOORS)
    first = journal.wait_begun(app.hold.delay("first"))
    others = [app.hold.delay(label) for label in ("second", "third")]
    state.wait_parked(*others)
    journal.let_all_go()
    for each in (first, *others):
        each.get(timeout=20)
    app.plain.delay("not throttled").get(timeout=20)
    worker.term()
    worker.wait()

    found = total(app, app.hold)
    assert (found.at_once, sum(found.waited), found.parked, found.ended, found.failed) == (1, 2, 2, 3, 0)
    assert 0 < found.run_time < 30
    assert 0 < found.wait_time < 60
    assert (found.sent_back, found.refused, found.duplicates, found.reclaimed) == (0, 0, 0, 0)
    assert "Traceback" not in worker.log()


def test_counts_of_a_running_worker_arrive(workers: Workers, journal: Journal) -> None:
    """With enough of them: after ten seconds."""
    app = workers.start_app(DOORS, concurrency=2)
    journal.let_all_go()

    def told() -> int:
        app.pair.delay("one").get(timeout=20)
        return total(app, app.pair).started

    assert until(told, timeout=60) >= 50


def test_returned_tasks_are_counted(workers: Workers, journal: Journal) -> None:
    worker = workers.start(LIMITED, concurrency=2)
    app = workers.app(LIMITED)
    result = app.call.delay("a", 0.2)
    journal.wait_started(2)
    journal.let_go("a")
    result.get(timeout=20)
    worker.term()
    worker.wait()
    found = total(app, app.call)
    assert found.sent_back >= 1
    assert found.started == found.sent_back + 1
    assert found.ended == 1


def test_lost_run_is_counted_by_the_reclaiming_worker(workers: Workers, journal: Journal) -> None:
    workers.conf["throttle_lease"] = 1
    lost = workers.start(DOORS, concurrency=1)
    app = workers.app(DOORS)
    journal.wait_begun(app.hold.delay("first"))
    lost.kill()
    journal.let_all_go()
    other = workers.start(DOORS, concurrency=1)
    app.hold.delay("next").get(timeout=20)
    other.term()
    other.wait()
    assert total(app, app.hold).reclaimed == 1


def test_a_full_store_drops_counts_and_takes_everything_else(
    store: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    worker = workers.start(DOORS, concurrency=1)
    app = workers.app(DOORS)
    journal.wait_begun(app.hold.delay("first"))
    with Redis.from_url(store.url) as client:
        client.config_set("maxmemory", 1)
    journal.let_all_go()
    until(lambda: not state.holders)
    worker.term()
    assert worker.wait() == 0
    assert "the store keeps no history of this worker's counts" in worker.log()
    assert "Traceback" not in worker.log()
