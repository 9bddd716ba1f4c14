"""The primary goes while throttled tasks run: the next one is found, nothing is lost, the cap holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import pytest

from celery_throttle.core.keys import Keys
from celery_throttle.embedded import EmbeddedServer
from tests.conftest import new_server
from tests.failures.tools import AT_ONCE, DOORS, LONG_LEASE, counts, most_at_once
from tests.support import clusters, sentinels
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import always, until
from tests.support.workers import Workers
from tests.topologies.tools import reap

pytestmark = pytest.mark.slow

#: Milliseconds of silence until a server counts as failed: long for a busy machine, short for a test.
SILENCE = 1000
#: Seconds, for the test that waits for renewals; a third of it passes between two of them.
LEASE = 2
#: Seconds for a failover and for the workers to find the new primary: they look every three seconds at the latest.
FAILOVER = 20.0


class Store(Protocol):
    """A store that can fail over."""

    @property
    def url(self) -> str: ...

    @property
    def primary(self) -> EmbeddedServer: ...

    def wait_replicated(self) -> None: ...


@contextmanager
def failing(kind: str) -> Iterator[Store]:
    if kind == "sentinel":
        with sentinels.watched(new_server, down_after=SILENCE) as watched:
            yield watched
    else:
        with clusters.cluster(new_server, node_timeout=SILENCE) as cluster:
            yield cluster


def listeners(state: State) -> int:
    """Return how many workers subscribe to the hints of this server."""
    with state.client() as client:
        return int(client.pubsub_numsub(Keys("throttle").wake)[0][1])


@pytest.mark.parametrize(("kind", "how"), [("sentinel", "killed"), ("sentinel", "frozen"), ("cluster", "killed")])
def test_the_primary_is_lost(workers: Workers, journal: Journal, kind: str, how: str) -> None:
    """Running tasks keep their permits, also those that end in between; parked ones start afterwards."""
    with failing(kind) as store:
        workers.conf |= {"throttle_url": store.url, "throttle_lease": LONG_LEASE}
        state = State(lambda: store.primary.url)
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

        until(lambda: store.primary is not lost, timeout=FAILOVER)
        journal.wait_running(2, timeout=FAILOVER)  # the place of the first is taken
        assert len(state.holders & holders) == 1  # the second has its permit still
        until(lambda: listeners(state) == len(started), timeout=AT_ONCE)
        if how == "frozen":
            lost.thaw()
        journal.let_all_go()
        journal.wait_finished(6, timeout=AT_ONCE)
        state.wait_clean()
        assert set(counts(journal).values()) == {1}
        assert most_at_once(journal, ".pair") == 2
        assert journal.order()[2] == "parked 0"


def test_unreplicated_data_is_put_back(workers: Workers, journal: Journal) -> None:
    """Permits; a parked task would be lost."""
    with sentinels.watched(new_server, down_after=SILENCE) as store:
        workers.conf |= {"throttle_url": store.url, "throttle_lease": LONG_LEASE}
        state = State(lambda: store.primary.url)
        worker = workers.start(DOORS, concurrency=2)
        app = workers.app(DOORS)
        store.wait_replicated()
        replica, lost = store.cut_off_replica(), store.primary
        first = journal.wait_begun(app.hold.delay("first"))
        lost.kill()
        replica.thaw()

        worker.wait_for_log(f"the store had lost the permit of task {first.id}, put back", timeout=FAILOVER)
        assert store.primary is replica
        state.wait_parked(app.hold.delay("next"))
        journal.let_all_go()
        journal.wait_finished(2, timeout=AT_ONCE)
        state.wait_clean()
        assert most_at_once(journal, ".hold") == 1


def test_the_primary_is_changed(workers: Workers, journal: Journal) -> None:
    """Without losing a connection: each one on the old primary is redirected at its next command."""
    with failing("cluster") as store:
        workers.conf |= {"throttle_url": store.url, "throttle_lease": LEASE}
        state = State(lambda: store.primary.url)
        worker = workers.start(DOORS, concurrency=2)
        app = workers.app(DOORS)
        first = journal.wait_begun(app.hold.delay("first"))
        state.wait_parked(app.hold.delay("parked"))

        before = store.primary
        assert isinstance(store, clusters.Cluster)
        store.hand_over()
        assert store.primary is not before

        # Renewed again and again: not only once, by a connection that is new.
        always(lambda: state.lease_left(first.id) > 0, seconds=2.5 * LEASE)
        journal.let_all_go()
        app.hold.delay("late")
        journal.wait_finished(3, timeout=AT_ONCE)
        state.wait_clean()
        assert most_at_once(journal, ".hold") == 1
        assert reap(app) == 0
        assert "lease_lost" not in worker.log()
