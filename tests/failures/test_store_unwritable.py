"""The store cannot write its append-only file, and refuses all writes: as if it were away."""

from __future__ import annotations

import sys

import pytest

from celery_throttle import Limit, StoreUnavailable
from celery_throttle.embedded import EmbeddedServer
from tests.failures.tools import DOORS, counts, most_at_once
from tests.store.terms_caller import TermsCaller, terms
from tests.support.disks import WRITES_LATER, unwritable
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Workers

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="another process's limits"),
    pytest.mark.parametrize("store", [WRITES_LATER], indirect=True),
]

LEASE = 6


def test_leases_survive_whichever_worker_is_back_first(
    store: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    """The lease of a worker has ended, and that of another one has not."""
    workers.conf["throttle_lease"] = LEASE
    slow = workers.start(DOORS, concurrency=2)
    app = workers.app(DOORS)
    held = journal.wait_begun(app.hold.delay("held"))
    quick = workers.start(DOORS, concurrency=2, queues="celery,left")
    parked = app.hold.delay("parked")
    state.wait_parked(parked)
    with state.client() as client:
        other = TermsCaller(client, "other", "none", lease=100 * LEASE, prefix="throttle")
        run = other.take("renewed seldom", terms(Limit("other", 1)).same)

        with unwritable(store):
            until(lambda: state.lease_left(held.id) < 0)
            for worker in (slow, quick):
                worker.wait_for_log("MISCONF Errors writing to the AOF file")
            slow.freeze()
        journal.wait_begun(app.left.delay("late"))  # on the quick one, which has called
        assert [run.label for run in journal.running()] == ["held", "late"]
        slow.thaw()
        until(lambda: state.lease_left(held.id) > 0)
        other.end(run)

    journal.let_all_go()
    journal.wait_finished(3)
    assert set(counts(journal).values()) == {1}
    assert most_at_once(journal, ".hold") == 1
    assert "lease_lost" not in slow.log() + quick.log()


@pytest.mark.parametrize("action", ["run", "fail"])
def test_the_action_for_a_store_that_is_away_is_taken(
    store: EmbeddedServer, workers: Workers, journal: Journal, state: State, action: str
) -> None:
    workers.conf["throttle_on_store_error"] = action
    worker = workers.start(DOORS, concurrency=3)
    app = workers.app(DOORS)
    journal.wait_begun(app.hold.delay("first"))
    with unwritable(store):
        second = app.hold.delay("second")
        if action == "run":
            journal.wait_begun(second)
        else:
            with pytest.raises(StoreUnavailable, match="out of reach"):
                second.get(timeout=HANGS_AFTER)
    worker.wait_for_log("the store is back")
    journal.let_all_go()
    third = app.hold.delay("third")
    assert third.get(timeout=HANGS_AFTER) == "third"
    state.wait_clean()
