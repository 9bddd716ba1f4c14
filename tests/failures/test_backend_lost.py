"""The result backend is away when a body ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.conftest import new_server
from tests.failures.tools import AT_ONCE, DOORS, LONG_LEASE, counts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.embedded import EmbeddedServer
    from tests.failures.tools import Doors
    from tests.support.journal import Journal
    from tests.support.state import State
    from tests.support.workers import Workers

pytestmark = pytest.mark.worker


@pytest.fixture
def backend(workers: Workers) -> Iterator[EmbeddedServer]:
    with new_server() as running:
        workers.backend = running.url
        # Celery tries for 20 s otherwise.
        retry = {"max_retries": 1, "interval_start": 0.1, "interval_max": 0.1}
        workers.conf["result_backend_transport_options"] = {"retry_policy": retry}
        yield running


@pytest.mark.parametrize("pool", ["prefork", "threads", "gevent"])
def test_slots_and_permits_are_free_at_once(
    backend: EmbeddedServer, workers: Workers, journal: Journal, doors: Doors, state: State, pool: str
) -> None:
    workers.conf["throttle_lease"] = LONG_LEASE
    workers.start(DOORS, pool=pool, concurrency=2)
    app = workers.app(DOORS)
    app.hold.delay("throttled")
    app.plain.delay("plain")
    journal.wait_running(2)
    state.wait_parked(app.hold.apply_async(("next",), ignore_result=True))

    backend.kill()
    doors.open("throttled", "plain")

    journal.wait_running(1, "next", timeout=AT_ONCE)
    app.plain.apply_async(("plain again",), ignore_result=True)
    journal.wait_running(1, "plain again", timeout=AT_ONCE)
    doors.open_all()
    journal.wait_finished(4)
    state.wait_clean()
    assert set(counts(journal).values()) == {1}
