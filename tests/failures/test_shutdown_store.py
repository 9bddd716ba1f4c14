"""A worker is stopped while the store is silent: it waits for the store until one deadline, then it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from celery_throttle.embedded import EmbeddedServer
from tests.failures.tools import DOORS, counts, most_at_once
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.workers import Worker, Workers

#: A third of this lease is how long a worker waits for the store when it stops. Ten seconds beside it are for Celery's
#: own shutdown on a busy machine: plain Celery takes one or two.
LEASE, ENDS_WITHIN = 9, 9 / 3 + 10.0


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


def start(workers: Workers, journal: Journal, pool: str, slots: int) -> tuple[Worker, Any]:
    """Start a worker whose slots and permits are all taken; return it, and the result of one more task."""
    workers.conf["task_annotations"] = {f"{DOORS}.pair": {"limit": slots}}
    worker = workers.start(DOORS, concurrency=slots, pool=pool)
    app = workers.app(DOORS)
    for number in range(slots):
        app.pair.delay(str(number))
    journal.wait_running(slots)
    return worker, app.pair.delay("next")


def stop(stopping: Worker, journal: Journal, slots: int) -> None:
    stopping.term()
    stopping.wait_for_log("Warm shutdown")
    journal.let_all_go()
    journal.wait_finished(slots)


@pytest.mark.parametrize(
    ("pool", "how"),
    [(pool, how) for pool in ("prefork", "threads") for how in ("paused", "frozen", "killed")] + [("solo", "paused")],
)
def test_worker_ends_while_the_store_does_not_answer(
    store: EmbeddedServer, workers: Workers, journal: Journal, state: State, pool: str, how: str
) -> None:
    workers.conf["throttle_lease"] = LEASE
    slots = 1 if pool == "solo" else 8
    stopping, after = start(workers, journal, pool, slots)
    if pool != "solo":  # which is in the body of its task
        state.wait_parked(after)

    with away(store, state, how):
        stop(stopping, journal, slots)
        assert stopping.wait(timeout=ENDS_WITHIN) == 0
        assert "Traceback" not in stopping.log()
    workers.start(DOORS, concurrency=slots)

    journal.wait_finished(slots + 1)
    state.wait_clean()
    assert set(counts(journal).values()) == {1}
    assert most_at_once(journal, ".pair") <= slots


def test_permits_are_handed_on_if_the_store_is_back_in_time(
    store: EmbeddedServer, workers: Workers, journal: Journal, state: State
) -> None:
    stopping, after = start(workers, journal, "prefork", 8)
    state.wait_parked(after)
    workers.start(DOORS, concurrency=8)

    with away(store, state, "paused"):
        stop(stopping, journal, 8)
        stopping.wait_for_log("lost the store")

    assert stopping.wait() == 0
    journal.wait_finished(8 + 1)
    state.wait_clean()
    assert set(counts(journal).values()) == {1}
