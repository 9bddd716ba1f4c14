"""The primary goes while throttled tasks run: the next one is found, nothing is lost, the cap holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from celery_throttle.core.keys import Keys
from celery_throttle.embedded import EmbeddedServer
from tests.conftest import new_server
from tests.failures.tools import DOORS, counts, most_at_once, unacknowledged
from tests.support import clusters, sentinels
from tests.support.clusters import Cluster
from tests.support.journal import Journal
from tests.support.sentinels import Watched
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, always, until
from tests.support.workers import Workers
from tests.topologies.tools import reap, skip_without_waitaof

pytestmark = pytest.mark.slow

#: Milliseconds of silence until a server counts as failed: long for a busy machine, short for a test.
SILENCE = 1000
#: Seconds, for the test that waits for renewals; a third of it passes between two of them.
LEASE = 2
#: How many tasks are parked right before the store is lost.
TASKS = 8


@contextmanager
def failing(kind: str, workers: Workers) -> Iterator[tuple[Watched | Cluster, State]]:
    """Let the workers have a store that fails over."""
    context: AbstractContextManager[Watched | Cluster] = (
        sentinels.watched(new_server, down_after=SILENCE)
        if kind == "sentinel"
        else clusters.cluster(new_server, node_timeout=SILENCE)
    )
    with context as store:
        workers.conf["throttle_url"] = store.url
        yield store, State(lambda: store.primary.url)


def listeners(state: State) -> int:
    """Return how many workers subscribe to the hints of this server."""
    with state.client() as client:
        return int(client.pubsub_numsub(Keys("throttle").wake)[0][1])


@pytest.mark.parametrize(("kind", "how"), [("sentinel", "killed"), ("sentinel", "frozen"), ("cluster", "killed")])
def test_the_primary_is_lost(workers: Workers, journal: Journal, kind: str, how: str) -> None:
    """Running tasks keep their permits, also those that end in between; parked ones start afterwards."""
    with failing(kind, workers) as (store, state):
        started = workers.start_many(2, DOORS, concurrency=2)
        app = workers.app(DOORS)
        for label in ("first", "second"):
            app.pair.delay(label)
        journal.wait_running(2)
        for number in range(3):
            state.wait_parked(app.pair.delay(f"parked {number}"))
        holders = state.holders
        store.wait_replicated()

        lost = store.primary
        lost.kill() if how == "killed" else lost.freeze()
        journal.let_go("first")
        journal.wait_finished(1, "first")
        app.pair.delay("late")
        for worker in started:
            worker.wait_for_log("lost the store, connecting again")

        until(lambda: store.primary is not lost)
        journal.wait_running(2)  # the place of the first is taken
        assert len(state.holders & holders) == 1  # the second has its permit still
        until(lambda: listeners(state) == len(started))
        if how == "frozen":
            lost.thaw()
        journal.let_all_go()
        journal.wait_finished(6)
        state.wait_clean()
        assert set(counts(journal).values()) == {1}
        assert most_at_once(journal, ".pair") == 2
        assert journal.order()[2] == "parked 0"


def test_the_primary_is_changed(workers: Workers, journal: Journal) -> None:
    """Without losing a connection: each one on the old primary is redirected at its next command."""
    with failing("cluster", workers) as (store, state):
        assert isinstance(store, Cluster)
        workers.conf["throttle_lease"] = LEASE
        worker = workers.start(DOORS, concurrency=2)
        app = workers.app(DOORS)
        first = journal.wait_begun(app.hold.delay("first"))
        state.wait_parked(app.hold.delay("parked"))

        before = store.primary
        store.hand_over()
        assert store.primary is not before

        # Renewed again and again: not only once, by a connection that is new.
        always(lambda: state.lease_left(first.id) > 0, seconds=2.5 * LEASE)
        journal.let_all_go()
        app.hold.delay("late")
        journal.wait_finished(3)
        state.wait_clean()
        assert most_at_once(journal, ".hold") == 1
        assert reap(app) == 0
        assert "lease_lost" not in worker.log()


def park(app: Any, state: State) -> None:
    for number in range(TASKS):
        app.hold.delay(str(number))
    until(lambda: len(state.parked) == TASKS)


def check(workers: Workers, journal: Journal, state: State) -> None:
    """Let all tasks go; each has run once, and nothing is left anywhere."""
    journal.let_all_go()
    journal.wait_finished(1 + TASKS)
    until(lambda: not unacknowledged(workers))
    state.wait_clean()
    assert set(counts(journal).values()) == {1}
    assert most_at_once(journal, ".hold") == 1


def test_unreplicated_data_is_put_back(workers: Workers, journal: Journal) -> None:
    """The replica has got none of the permits, and none of the parked tasks: ``throttle_park_durability`` saves them.

    Nor is there a replica to get later ones.
    """
    workers.conf |= {"throttle_park_durability": "replicas", "throttle_park_timeout": 0.3}
    with failing("sentinel", workers) as (store, state):
        assert isinstance(store, Watched)
        worker = workers.start(DOORS, concurrency=2)
        app = workers.app(DOORS)
        store.wait_replicated()
        replica = store.cut_off_replica()
        first = journal.wait_begun(app.hold.delay("first"))
        park(app, state)
        worker.wait_for_log("not as safe as throttle_park_durability = 'replicas' asks for .on 0 of 1 replicas")

        store.fail_over()
        assert store.primary is replica
        worker.wait_for_log(f"the store had lost the permit of task {first.id}, put back")
        worker.wait_for_log("was parked, and the store has lost it", times=TASKS)
        state.wait_parked(TASKS)
        check(workers, journal, state)
        app.hold.delay("later").get(timeout=HANGS_AFTER)


@pytest.fixture
def one(request: pytest.FixtureRequest, workers: Workers) -> Iterator[EmbeddedServer]:
    """A store that is one server, with these options."""
    with new_server(persistent=True, options=request.param) as running:
        skip_without_waitaof(running)
        workers.conf |= {"throttle_park_durability": "disk", "throttle_park_timeout": 0.5}
        workers.conf["throttle_url"] = running.url
        yield running


@pytest.mark.parametrize("one", [{"appendfsync": "always"}, {"appendfsync": "everysec"}], indirect=True)
def test_the_server_is_killed_and_comes_back(one: EmbeddedServer, workers: Workers, journal: Journal) -> None:
    """The confirmed data is on disk; the broker's messages are acknowledged by then."""
    app = workers.start_app(DOORS, concurrency=2)
    state = State(lambda: one.url)
    journal.wait_begun(app.hold.delay("first"))
    park(app, state)
    until(lambda: not unacknowledged(workers))
    one.kill()
    one.restart()
    assert len(state.parked) == TASKS
    check(workers, journal, state)


@pytest.mark.parametrize("one", [{"appendonly": "no"}], indirect=True)
def test_a_server_without_a_disk_comes_back_empty(one: EmbeddedServer, workers: Workers, journal: Journal) -> None:
    """The worker warned at its start; so the broker keeps the parked messages, and nothing is lost."""
    worker = workers.start(DOORS, concurrency=2)
    worker.wait_for_log("throttle_park_durability is 'disk', and the store writes no append-only file: set appendonly")
    app = workers.app(DOORS)
    state = State(lambda: one.url)
    journal.wait_begun(app.hold.delay("first"))
    park(app, state)
    one.kill()
    one.restart()
    worker.wait_for_log("was parked, and the store has lost it", times=TASKS)
    check(workers, journal, state)
