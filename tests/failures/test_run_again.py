"""Tasks that Celery runs again, or does not, after a lost process of the pool or a time limit."""

from __future__ import annotations

import pytest
from celery import VERSION

from tests.failures.tools import AT_ONCE, SEAMS, counts, redeliver, unacknowledged
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers

pytestmark = [
    pytest.mark.skipif((VERSION.major, VERSION.minor) < (5, 7), reason="Celery does this from 5.7 on"),
]


@pytest.mark.parametrize("parked", [False, True])
@pytest.mark.parametrize("name", ["late", "late_one"])
def test_timed_out_task_without_acknowledgement(workers: Workers, journal: Journal, name: str, *, parked: bool) -> None:
    """As without limits, it is delivered again; in between its result is a failure."""
    workers.start(SEAMS, concurrency=1 if parked else 2)
    task = getattr(workers.app(SEAMS), name)
    if parked:
        task.delay("before")
        journal.wait_started(1, "before")
    task.delay("late")
    journal.wait_started(2, "late", timeout=AT_ONCE)
    journal.let_all_go()
    until(lambda: any(run.label == "late" and run.outcome == "returned" for run in journal.runs()), timeout=AT_ONCE)
    until(lambda: not unacknowledged(workers), timeout=AT_ONCE)


def test_singleton_retried_after_a_lost_process_is_pending(workers: Workers, journal: Journal, state: State) -> None:
    worker = workers.start(SEAMS, concurrency=2)
    lost = workers.app(SEAMS).lost
    first = lost.delay("first")
    worker.wait_for_log("retry: Retry")
    until(lambda: not state.holders)
    assert lost.delay("second").id == first.id
    journal.wait_running(1, "first", timeout=AT_ONCE)
    journal.let_all_go()
    assert first.get(timeout=AT_ONCE) == "first"
    assert counts(journal) == {"first": 1}


def test_process_lost_after_a_stored_success_repeats_no_run(workers: Workers, journal: Journal, state: State) -> None:
    """The broker has delivered it again while it ran."""
    worker = workers.start(SEAMS, concurrency=2)
    result = workers.app(SEAMS).lost_afterwards.delay("lost")
    journal.wait_running(1)
    redeliver(workers)
    until(lambda: state.has_second(result), timeout=AT_ONCE, describe=state.describe)
    journal.let_all_go()
    worker.wait_for_log("succeeded before the worker was lost")
    state.wait_clean()
    assert counts(journal) == {"lost": 1}
