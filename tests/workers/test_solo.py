"""A solo worker on a broker that no event loop reads: parked tasks follow each other, and messages have their turns."""

from __future__ import annotations

from pathlib import Path

import pytest
from celery import Celery
from celery.contrib.testing.worker import start_worker

from celery_throttle import ThrottleControl, Throttled
from celery_throttle.embedded import EmbeddedServer
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.workers import Workers
from tests.workers.conftest import FEATURES, use_filesystem_broker

#: Celery asks such a broker for messages for two seconds before it does anything else. So 20 tasks took 40 s.
COUNT, WITHIN = 20, 15.0


def test_parked_tasks_alternate_with_messages(workers: Workers, journal: Journal, state: State, tmp_path: Path) -> None:
    use_filesystem_broker(workers, tmp_path)
    app = workers.start_app(FEATURES, pool="solo", concurrency=1)
    control = ThrottleControl(app.app)
    app.plain.delay("knows its limits").get(timeout=WITHIN)
    control.limit("single").pause()
    for number in range(COUNT):
        app.one.delay(f"parked {number}")
    state.wait_parked(COUNT)
    journal.wait_begun(app.plain_hold.delay("hold"))
    control.limit("single").resume()
    for number in range(3):
        app.plain.delay(f"plain {number}")

    journal.let_go("hold")

    journal.wait_finished(1 + 1 + COUNT + 3, timeout=WITHIN)
    order = journal.order()
    assert [label for label in order if label.startswith("parked")] == [f"parked {number}" for number in range(COUNT)]
    assert order.index("plain 2") < order.index(f"parked {COUNT - 1}")
    state.wait_empty()


@pytest.mark.usefixtures("log_as_before")
def test_worker_of_a_test_suite_runs_parked_tasks_at_once(server: EmbeddedServer, state: State) -> None:
    app = Celery("suite", broker="memory://", set_as_current=False)
    app.conf.update(throttle_url=server.url, worker_hijack_root_logger=False, result_backend="cache+memory://")

    @app.task(shared=False, base=Throttled, limit=1, name="one")
    def one(number: int) -> int:
        return number

    with start_worker(app, pool="solo", perform_ping_check=False, shutdown_timeout=20):
        one.delay(-1).get(timeout=WITHIN)
        limit = ThrottleControl(app).limit("one")
        limit.pause()
        results = [one.delay(number) for number in range(COUNT)]
        state.wait_parked(COUNT)
        limit.resume()
        assert results[-1].get(timeout=WITHIN) == COUNT - 1
        assert [result.get(timeout=WITHIN) for result in results] == list(range(COUNT))
