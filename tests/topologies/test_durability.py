"""The store is lost right after it has parked a task: with ``throttle_park_durability`` nothing is lost with it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from celery_throttle.embedded import EmbeddedServer
from tests.conftest import new_server
from tests.failures.tools import AT_ONCE, DOORS, LONG_LEASE, unacknowledged
from tests.support import sentinels
from tests.support.journal import Journal
from tests.support.sentinels import Watched
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers
from tests.topologies.tools import skip_without_waitaof

pytestmark = pytest.mark.slow

TASKS = 8
REPLICAS = {"throttle_park_durability": "replicas", "throttle_park_timeout": 0.3, "throttle_lease": LONG_LEASE}
DISK = {"throttle_park_durability": "disk", "throttle_park_timeout": 0.5, "throttle_lease": LONG_LEASE}


#: Of the tasks that wait behind "first".
LABELS = [str(place) for place in range(TASKS)]


def publish(app: Any) -> None:
    for label in LABELS:
        app.hold.delay(label)


def wait_all(journal: Journal, labels: list[str]) -> None:
    """Wait until all of these have run; none of them twice."""
    until(
        lambda: {run.label for run in journal.finished()} >= set(labels),
        timeout=30,
        describe=lambda: f"missing: {sorted(set(labels) - {run.label for run in journal.finished()})}",
    )
    ran = Counter(run.label for run in journal.runs())
    assert {label: ran[label] for label in labels} == dict.fromkeys(labels, 1)


@pytest.fixture
def watched(workers: Workers) -> Iterator[Watched]:
    """A store that a sentinel fails over."""
    with sentinels.watched(new_server, down_after=1000) as running:
        workers.conf |= {**REPLICAS, "throttle_url": running.url}
        yield running


def test_a_sentinel_fails_over(watched: Watched, workers: Workers, journal: Journal) -> None:
    """The replica has got none of them."""
    worker = workers.start(DOORS, concurrency=2)
    app = workers.app(DOORS)
    state = State(lambda: watched.primary.url)
    journal.wait_begun(app.hold.delay("first"))
    watched.wait_replicated()
    replica, lost = watched.cut_off_replica(), watched.primary
    publish(app)
    until(lambda: len(state.parked) == TASKS)
    worker.wait_for_log("not as safe as throttle_park_durability = 'replicas' asks for .on 0 of 1 replicas")

    lost.kill()
    replica.thaw()
    worker.wait_for_log("was parked, and the store has lost it", times=TASKS, timeout=30)
    journal.let_go("first", *LABELS)

    wait_all(journal, ["first", *LABELS])
    # No replica is there to get later parked tasks.
    journal.wait_begun(app.hold.delay("next"))
    app.hold.delay("kept")
    until(lambda: len(state.parked) == 1)
    journal.let_all_go()
    wait_all(journal, ["next", "kept"])
    until(lambda: not unacknowledged(workers))
    state.wait_clean()


@pytest.fixture
def one(request: pytest.FixtureRequest, workers: Workers) -> Iterator[EmbeddedServer]:
    """A store that is one server, with these options."""
    with new_server(persistent=True, options=request.param) as running:
        skip_without_waitaof(running)
        workers.conf |= {**DISK, "throttle_url": running.url}
        yield running


@pytest.mark.parametrize("one", [{"appendfsync": "always"}, {"appendfsync": "everysec"}], indirect=True)
def test_the_server_is_killed_and_comes_back(one: EmbeddedServer, workers: Workers, journal: Journal) -> None:
    """The confirmed data is on disk; the broker's messages are acknowledged by then."""
    app = workers.start_app(DOORS, concurrency=2)
    state = State(lambda: one.url)
    journal.wait_begun(app.hold.delay("first"))
    publish(app)
    until(lambda: len(state.parked) == TASKS and not unacknowledged(workers), timeout=AT_ONCE)
    one.kill()
    one.restart()
    assert len(state.parked) == TASKS
    journal.let_go("first", *LABELS)
    wait_all(journal, ["first", *LABELS])
    state.wait_clean()


@pytest.mark.parametrize("one", [{"appendonly": "no"}], indirect=True)
def test_a_server_without_a_disk_comes_back_empty(one: EmbeddedServer, workers: Workers, journal: Journal) -> None:
    """The worker warned at its start; so the broker keeps the parked messages, and nothing is lost."""
    worker = workers.start(DOORS, concurrency=2)
    worker.wait_for_log("throttle_park_durability is 'disk', and the store writes no append-only file: set appendonly")
    app = workers.app(DOORS)
    state = State(lambda: one.url)
    journal.wait_begun(app.hold.delay("first"))
    publish(app)
    until(lambda: len(state.parked) == TASKS)
    one.kill()
    one.restart()
    worker.wait_for_log("was parked, and the store has lost it", times=TASKS, timeout=30)
    journal.let_go("first", *LABELS)
    wait_all(journal, ["first", *LABELS])
    until(lambda: not unacknowledged(workers))
    state.wait_clean()
