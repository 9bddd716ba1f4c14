"""A worker is SIGKILLed: its permits come back within one lease; only Celery's acks setting decides about losses."""

from __future__ import annotations

from celery_throttle import ThrottleControl
from celery_throttle.core.keys import Keys
from tests.failures.tools import DIES, DOORS, counts, most_at_once, redeliver
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers


def test_direct_and_resumed_early_and_late_acknowledgement(workers: Workers, journal: Journal, state: State) -> None:
    lost = workers.start(DOORS, concurrency=5, conf=DIES)
    app = workers.app(DOORS)
    # Two limits whose holder came from the line, so that only the store has (late) or had (early) its message ...
    app.hold.delay("early zero")
    app.hold_late.delay("late zero")
    journal.wait_running(2)
    early_resumed, late_resumed = app.hold.delay("early resumed"), app.hold_late.delay("late resumed")
    state.wait_parked(early_resumed, late_resumed)
    early_parked, late_parked = app.hold.delay("early parked"), app.hold_late.delay("late parked")
    state.wait_parked(early_parked, late_parked)
    journal.let_go("early zero", "late zero")
    # ... and two whose holder came straight from the broker.
    app.pair.delay("early direct")
    app.hold_again.delay("late direct")
    journal.wait_finished(2)
    journal.wait_running(4)
    with state.client() as client:  # until its start is in the store
        until(lambda: not client.hexists(Keys("throttle").key("messages"), early_resumed.id))
    other = workers.start(DOORS, concurrency=5)
    assert set(state.parked) == {early_parked.id, late_parked.id}

    lost.kill()
    redeliver(workers)  # as the broker does once its visibility timeout is over
    journal.let_all_go()

    journal.wait_finished(6)
    state.wait_clean()
    assert counts(journal) == {
        "early zero": 1,
        "late zero": 1,
        "early direct": 1,
        "early resumed": 1,
        "early parked": 1,
        "late direct": 2,
        "late resumed": 2,
        "late parked": 1,
    }
    assert {run.label for run in journal.finished()} == set(counts(journal)) - {"early direct", "early resumed"}
    again = [run for run in journal.finished() if run.label in {"late direct", "late resumed"}]
    assert all(run.worker.startswith(other.name) and run.redelivered for run in again), again
    assert {most_at_once(journal, task) for task in ("hold", "hold_late", "hold_again")} == {1}
    other.term()
    other.wait()  # which sends its counts
    assert ThrottleControl(app.app).limit(app.hold).history().total.reclaimed == 1
