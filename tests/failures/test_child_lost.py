"""A child of the pool is lost: its permit is free at once. The lease is so long that no test can wait for it."""

from __future__ import annotations

import pytest
from celery import VERSION
from celery.exceptions import TimeLimitExceeded, WorkerLostError
from celery.result import AsyncResult

from tests.failures.tools import DOORS, SEAMS, counts, most_at_once, redeliver, unacknowledged
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Worker, Workers

since_57 = pytest.mark.skipif((VERSION.major, VERSION.minor) < (5, 7), reason="Celery does this from 5.7 on")


@pytest.fixture
def started(workers: Workers) -> Worker:
    return workers.start(DOORS, concurrency=2)


@pytest.mark.parametrize("how", ["SIGKILL", "time limit", "revoke", "os._exit", "SystemExit"])
def test_lost_child_frees_its_permit_at_once(
    started: Worker, workers: Workers, journal: Journal, state: State, how: str
) -> None:
    app = workers.app(DOORS)
    arguments = ["first", how.removeprefix("os._")]
    first: AsyncResult[str] = app.hold.apply_async(arguments, time_limit=1 if how == "time limit" else None)
    journal.wait_started(1, "first")
    successor = app.hold.delay("successor")
    journal.let_go("successor")

    if how == "SIGKILL":
        started.kill_child(journal.runs("first")[0].pid)
    elif how == "revoke":
        app.app.control.revoke(first.id, terminate=True)
    elif how != "time limit":
        journal.let_go("first")

    assert successor.get(timeout=HANGS_AFTER) == "successor"
    assert most_at_once(journal, "hold") == 1
    assert counts(journal) == {"first": 1, "successor": 1}
    if how != "SystemExit":  # Celery 5.4 cannot store that one
        assert first.state == ("REVOKED" if how == "revoke" else "FAILURE")
    if how == "time limit":
        assert isinstance(first.result, TimeLimitExceeded)
    elif how == "SIGKILL":
        assert isinstance(first.result, WorkerLostError)
    state.wait_clean()


@pytest.mark.parametrize("source", ["broker", "store"])
def test_rejected_on_worker_lost_runs_again(
    started: Worker, workers: Workers, journal: Journal, state: State, source: str
) -> None:
    app = workers.app(DOORS)
    if source == "store":
        journal.wait_begun(app.hold_again.delay("zero"))
        state.wait_parked(app.hold_again.delay("first"))
        journal.let_go("zero")
    else:
        app.hold_again.delay("first")
    journal.wait_running(1, "first")
    state.wait_parked(app.hold_again.delay("next"))

    started.kill_child(journal.runs("first")[0].pid)

    journal.wait_running(1, "next")
    journal.let_all_go()
    journal.wait_finished(1, "first")
    state.wait_clean()
    assert most_at_once(journal, "hold_again") == 1
    runs = {label: number for label, number in counts(journal).items() if label != "zero"}
    assert runs == {"first": 2, "next": 1}


@since_57
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
    journal.wait_started(2, "late")
    journal.let_all_go()
    until(lambda: any(run.label == "late" and run.outcome == "returned" for run in journal.runs()))
    until(lambda: not unacknowledged(workers))


@since_57
def test_process_lost_after_a_stored_success_repeats_no_run(workers: Workers, journal: Journal, state: State) -> None:
    """The broker has delivered it again while it ran."""
    worker = workers.start(SEAMS, concurrency=2)
    result = workers.app(SEAMS).lost_afterwards.delay("lost")
    journal.wait_running(1)
    redeliver(workers)
    until(lambda: state.has_second(result), describe=state.describe)
    journal.let_all_go()
    worker.wait_for_log("succeeded before the worker was lost")
    state.wait_clean()
    assert counts(journal) == {"lost": 1}


def test_task_leaving_a_solo_worker_does_not_run_again(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(DOORS, pool="solo", concurrency=1)
    limit = state.limit(app.hold.name)
    limit.pause()
    state.wait_parked(app.hold.delay("leaves", "SystemExit"))
    journal.let_all_go()
    limit.resume()
    app.hold.delay("after").get(timeout=HANGS_AFTER)
    state.wait_clean()
    assert counts(journal) == {"leaves": 1, "after": 1}
