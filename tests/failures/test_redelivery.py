"""The broker delivers a task again (``visibility_timeout``): two deliveries of one task id never run at once."""

from __future__ import annotations

from tests.failures.tools import (
    AT_ONCE,
    DOORS,
    SHORT_LEASE,
    WITHIN_LEASE,
    counts,
    most_at_once,
    queued,
    redeliver,
    unacknowledged,
)
from tests.support.journal import Journal
from tests.support.looks import FRESH
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers


def test_second_delivery_is_dropped_when_the_first_succeeds(workers: Workers, journal: Journal, state: State) -> None:
    """However often the broker delivers it."""
    started = workers.start_many(2, DOORS, concurrency=2)
    app = workers.app(DOORS)
    first = journal.wait_begun(app.hold_late.delay("first"))
    other = app.hold_late.delay("other")
    state.wait_parked(other)

    def received() -> int:
        return sum(worker.log().count(f"{first.id}] received") for worker in started)

    def wait_set_aside(messages: int) -> None:
        # On the way from its queue to a worker a message is neither queued nor unacknowledged.
        until(lambda: received() >= messages, timeout=AT_ONCE)
        until(lambda: state.has_second(first) and not unacknowledged(workers) and not queued(workers), timeout=AT_ONCE)

    redeliver(workers)
    wait_set_aside(2)
    for messages in (3, 4):
        app.hold_late.apply_async(["first"], task_id=first.id)  # as a broker does that delivers it once more
        wait_set_aside(messages)
    assert received() == 4
    assert counts(journal) == {"first": 1}
    journal.let_all_go()

    journal.wait_finished(2, timeout=AT_ONCE)
    state.wait_clean()
    assert counts(journal) == {"first": 1, "other": 1}
    assert most_at_once(journal, ".hold_late") == 1


def test_second_delivery_runs_when_the_worker_of_the_first_dies(
    workers: Workers, journal: Journal, state: State
) -> None:
    workers.conf["throttle_lease"] = SHORT_LEASE
    lost = workers.start(DOORS, concurrency=1)
    app = workers.app(DOORS)
    late = journal.wait_begun(app.hold_late.delay("late"))
    workers.start(DOORS, concurrency=2)

    def set_aside() -> bool:
        redeliver(workers)
        return state.has_second(late)

    until(set_aside, timeout=AT_ONCE, every=0.2)
    assert counts(journal) == {"late": 1}
    lost.kill()
    journal.let_all_go()

    journal.wait_finished(1, "late", timeout=WITHIN_LEASE)
    redeliver(workers)
    state.wait_clean()
    assert most_at_once(journal, ".hold_late") == 1
    assert journal.max_running("late") == 1
    assert [run.outcome for run in journal.runs("late")][:2] == ["killed", "returned"]


def test_second_delivery_of_one_that_waits_for_a_slot(workers: Workers, journal: Journal, state: State) -> None:
    """Its first worker has had it for so long that another one has it by now: no permit is just passed on to it."""
    first = workers.start(DOORS, concurrency=1, conf={"worker_prefetch_multiplier": 1}, env={FRESH: "0"})
    app = workers.app(DOORS)
    journal.wait_begun(app.pair.delay("first"))
    waits = app.pair.delay("waits")
    first.wait_for_log(f"{waits.id}. received")
    workers.start(DOORS, concurrency=1)
    redeliver(workers)
    journal.wait_running(1, "waits")

    journal.let_go("first")
    until(lambda: not unacknowledged(workers), timeout=AT_ONCE)  # the first worker has dealt with it
    journal.let_go("waits")
    journal.wait_finished(2, timeout=AT_ONCE)
    state.wait_clean()
    assert counts(journal) == {"first": 1, "waits": 1}
