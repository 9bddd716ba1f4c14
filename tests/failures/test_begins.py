"""A task that begins and has no outcome: it begins again after a pause, and not for ever."""

from __future__ import annotations

import pytest
from billiard.exceptions import WorkerLostError

from tests.failures.tools import DOORS, counts
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Workers


@pytest.mark.parametrize(
    ("pool", "how"),
    [
        ("threads", "SystemExit"),
        ("gevent", "SystemExit"),
        ("prefork", "exit"),  # the process is lost
    ],
)
def test_task_without_an_outcome_pauses_and_is_set_aside(
    workers: Workers, journal: Journal, state: State, pool: str, how: str
) -> None:
    """Its message is rejected (``reject_on_worker_lost``)."""
    workers.conf["throttle_max_begins"] = 3
    app = workers.start_app(DOORS, pool=pool, concurrency=1)
    task = app.hold_again
    limit = state.limit(task.name)
    limit.pause()
    journal.let_all_go()
    bad = task.delay("bad", how)
    state.wait_parked(bad)
    good = task.delay("good")
    state.wait_parked(bad, good)
    limit.resume()

    assert good.get(timeout=HANGS_AFTER) == "good"  # it does not wait for the other
    until(state.throttle.set_aside, describe=lambda: str(counts(journal)))
    (aside,) = state.throttle.set_aside()
    assert (aside.task_id, aside.why) == (bad.id, "begun 3 times without an outcome")
    assert state.throttle.explain(bad.id).state == "set aside"
    assert counts(journal) == {"bad": 3, "good": 1}
    first, second, third = (run.started for run in journal.runs("bad"))
    assert second - first > 0.9
    assert third - second > 1.9
    assert state.used == {}


@pytest.mark.parametrize("pool", ["threads", "gevent", "solo", "prefork"])
@pytest.mark.parametrize("name", ["hold", "hold_late"])
def test_task_that_exits_fails_in_every_pool(
    workers: Workers, journal: Journal, state: State, pool: str, name: str
) -> None:
    """Once, as Celery's prefork pool has it; the next task runs."""
    app = workers.start_app(DOORS, pool=pool, concurrency=1)
    task = getattr(app, name)
    journal.let_all_go()
    bad, good = task.delay("bad", "SystemExit"), task.delay("good")
    with pytest.raises(WorkerLostError):
        bad.get(timeout=HANGS_AFTER)
    assert good.get(timeout=HANGS_AFTER) == "good"
    assert counts(journal) == {"bad": 1, "good": 1}
    state.wait_clean()
