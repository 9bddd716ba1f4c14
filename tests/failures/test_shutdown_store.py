"""A worker is stopped while the store is silent: it waits for the store until one deadline, then it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from celery_throttle.embedded import EmbeddedServer
from tests.failures.tools import AT_ONCE, DOORS, LONG_LEASE, counts, most_at_once
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.workers import Workers

RUNNING = 8
PAIR = "tests.support.apps.doors.pair"
#: A third of this lease is how long a worker waits for the store when it stops. Ten seconds beside it are for Celery's
#: own shutdown on a busy machine: plain Celery takes one or two.
LEASE, ENDS_WITHIN = 9, 9 / 3 + 10.0


@pytest.fixture(autouse=True)
def eight_at_once(workers: Workers) -> None:
    workers.conf.update(throttle_lease=LEASE, task_annotations={PAIR: {"limit": RUNNING}})


@contextmanager
def away(store: EmbeddedServer, state: State, how: str) -> Iterator[None]:
    """The store takes connections and carries out no writes, or is frozen, or is killed; then it is there again."""
    if how == "paused":
        with state.client() as client:
            client.execute_command("CLIENT", "PAUSE", 600_000, "WRITE")
            yield
            client.execute_command("CLIENT", "UNPAUSE")
    elif how == "frozen":
        store.freeze()
        yield
        store.thaw()
    else:
        store.kill()
        yield
        store.restart()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("how", ["paused", "frozen", "killed"])
def test_worker_ends_while_the_store_does_not_answer(
    store: EmbeddedServer, workers: Workers, journal: Journal, state: State, how: str, pool: str
) -> None:
    stopping = workers.start(DOORS, concurrency=RUNNING, pool=pool)
    app = workers.app(DOORS)
    for number in range(RUNNING):
        app.pair.delay(str(number))
    journal.wait_running(RUNNING)
    state.wait_parked(app.pair.delay("next"))

    with away(store, state, how):
        stopping.term()
        stopping.wait_for_log("Warm shutdown")
        journal.let_all_go()
        journal.wait_finished(RUNNING)
        assert stopping.wait(timeout=ENDS_WITHIN) == 0
        assert "Traceback" not in stopping.log()
    workers.start(DOORS, concurrency=RUNNING)

    journal.wait_finished(RUNNING + 1, timeout=LEASE + AT_ONCE)
    state.wait_clean(timeout=LEASE + AT_ONCE)
    assert set(counts(journal).values()) == {1}
    assert most_at_once(journal, ".pair") <= RUNNING


def test_solo_worker_ends_while_the_store_does_not_answer(
    store: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    stopping = workers.start(DOORS, concurrency=1, pool="solo")
    app = workers.app(DOORS)
    journal.wait_begun(app.hold.delay("first"))

    with away(store, state, "paused"):
        stopping.term()
        stopping.wait_for_log("Warm shutdown")
        journal.let_all_go()
        journal.wait_finished(1)
        assert stopping.wait(timeout=ENDS_WITHIN) == 0


def test_permits_are_handed_on_if_the_store_is_back_in_time(
    store: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    workers.conf["throttle_lease"] = LONG_LEASE
    stopping = workers.start(DOORS, concurrency=RUNNING)
    app = workers.app(DOORS)
    for number in range(RUNNING):
        app.pair.delay(str(number))
    journal.wait_running(RUNNING)
    state.wait_parked(app.pair.delay("next"))
    workers.start(DOORS, concurrency=RUNNING)

    with away(store, state, "paused"):
        stopping.term()
        stopping.wait_for_log("Warm shutdown")
        journal.let_all_go()
        journal.wait_finished(RUNNING)
        stopping.wait_for_log("lost the store")

    assert stopping.wait() == 0
    journal.wait_finished(RUNNING + 1, timeout=AT_ONCE)
    state.wait_clean()
    assert set(counts(journal).values()) == {1}
