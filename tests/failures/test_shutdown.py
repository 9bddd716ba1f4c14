"""A stopping worker finishes its runs (warm) or gives them back (cold), and the others go on at once."""

from __future__ import annotations

from pathlib import Path

import pytest
from celery.worker import WorkController

from celery_throttle import ThrottleControl
from tests.failures.tools import DOORS, LIMITED, NO_LOOK, counts, most_at_once, redeliver, wait_returned
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, always, until
from tests.support.workers import LONG_LEASE, Workers
from tests.workers.conftest import use_filesystem_broker

CUSTOM = "tests.support.apps.custom"


def test_warm_shutdown_hands_its_permits_on(workers: Workers, journal: Journal, state: State) -> None:
    """And gives back the task that has a permit to come, but no slot."""
    workers.env.update(NO_LOOK)
    stopping = workers.start(DOORS, concurrency=3)
    app = workers.app(DOORS)
    app.plain.delay("longest")
    app.hold.delay("first")  # from the broker
    app.hold_late.delay("late zero")
    journal.wait_running(3)
    late_parked = app.hold_late.delay("late first")  # from the store
    state.wait_parked(late_parked)
    journal.let_go("late zero")
    journal.wait_running(1, "late first")
    parked = [app.hold.delay("second"), app.hold.delay("third"), app.hold_late.delay("late second")]
    state.wait_parked(*parked)
    waits = app.pair.delay("without a slot")
    stopping.wait_for_log(rf"{waits.id}\] received")
    other = workers.start(DOORS, concurrency=3)

    stopping.term()
    stopping.wait_for_log("Warm shutdown")
    for number in range(4):
        app.plain.delay(f"plain {number}")
    app.hold.delay("fourth")
    assert state.parked[:3] == [result.id for result in parked]
    journal.let_go("first", "second", "late first", "late second", *(f"plain {number}" for number in range(4)))
    journal.let_go("without a slot")

    # Its permits went on when its tasks ended, before it was gone itself.
    journal.wait_running(1, "third")
    journal.wait_finished(1, "late second")
    assert journal.running("longest")
    journal.let_all_go()
    assert stopping.wait() == 0
    journal.wait_finished(13)
    state.wait_clean()
    assert set(counts(journal).values()) == {1}
    there = {run.label for run in journal.runs() if run.worker.startswith(other.name)}
    assert there == set(counts(journal)) - {"longest", "late zero", "first", "late first"}
    assert journal.order(task=".hold") == ["first", "second", "third", "fourth"]
    assert {most_at_once(journal, task) for task in (".hold", ".hold_late")} == {1}


def test_warm_shutdown_gives_back_tasks_without_a_process(
    workers: Workers, journal: Journal, state: State, tmp_path: Path
) -> None:
    """A process has just been lost, and the next is not ready: the jobs of the pool will not run here any more."""
    workers.conf.update(worker_proc_alive_timeout=60)
    sign = tmp_path / "no entry"
    stopping = workers.start(DOORS, concurrency=2, env={"SIGN": str(sign)})
    app = workers.app(DOORS)
    app.plain.delay("longest")
    [longest] = journal.wait_running(1)
    [idle] = set(stopping.children()) - {longest.pid}
    sign.touch()
    stopping.kill_child(idle)
    until(lambda: len(set(stopping.children()) - {idle}) == 2)
    unsent = app.hold_late.delay("unsent")
    until(lambda: state.holders == {unsent.id}, describe=state.describe)
    state.wait_parked(app.hold_late.delay("next"))
    workers.start(DOORS, concurrency=1)

    stopping.term()

    journal.wait_running(1, "next")
    assert journal.running("longest")
    sign.unlink()
    journal.let_all_go()
    assert stopping.wait() == 0
    journal.wait_finished(3)
    state.wait_clean()
    assert counts(journal) == {"longest": 1, "next": 1, "unsent": 1}


@pytest.mark.parametrize("signals", [0, 1, 2])
def test_cold_shutdown(workers: Workers, journal: Journal, state: State, signals: int) -> None:
    """Started and unacknowledged tasks run again, whether the broker has the message or the store.

    ``signals``: how many come in a soft shutdown, which ends without them.
    """
    stopping = workers.start(DOORS, concurrency=4, conf={"worker_soft_shutdown_timeout": 2 * bool(signals)})
    app = workers.app(DOORS)
    app.hold.delay("early")
    app.twice.delay("late direct")
    app.hold_again.delay("zero")
    journal.wait_running(3)
    late_resumed = app.hold_again.delay("late resumed")
    state.wait_parked(late_resumed, app.hold.delay("early parked"))
    state.wait_parked(app.hold_again.delay("late parked"))
    journal.let_go("zero")
    journal.wait_running(1, "late resumed")
    victims = stopping.children()
    workers.start(DOORS, concurrency=4)

    stopping.quit()
    if signals and hasattr(WorkController, "wait_for_soft_shutdown"):
        stopping.wait_for_log("Initiating Soft Shutdown")
    if signals == 2:  # it cancels the tasks amid the soft shutdown
        stopping.quit()
    stopping.wait()
    journal.killed(victims)
    redeliver(workers)
    journal.let_all_go()

    wait_returned(journal, 5)
    state.wait_clean()
    assert counts(journal) == {
        "early": 1,
        "early parked": 1,
        "late direct": 2,
        "zero": 1,
        "late resumed": 2,
        "late parked": 1,
    }
    assert {most_at_once(journal, task) for task in (".hold", ".hold_again", ".twice")} == {1}


@pytest.mark.skipif(not hasattr(WorkController, "wait_for_soft_shutdown"), reason="new in Celery 5.5")
@pytest.mark.parametrize("task", ["hold", "hold_late"])
@pytest.mark.parametrize(("pool", "broker"), [("prefork", "redis"), ("prefork", "filesystem"), ("threads", "redis")])
def test_soft_shutdown_hands_permits_on(
    workers: Workers, journal: Journal, state: State, tmp_path: Path, pool: str, broker: str, task: str
) -> None:
    """Although Celery's main thread sleeps; nothing starts in the worker that stops."""
    if broker == "filesystem":
        use_filesystem_broker(workers, tmp_path)
    stopping = workers.start(DOORS, pool=pool, concurrency=2, conf={"worker_soft_shutdown_timeout": LONG_LEASE})
    app = workers.app(DOORS)
    journal.wait_begun(app.plain.delay("longest"))
    first = journal.wait_begun(getattr(app, task).delay("first"))
    state.wait_parked(getattr(app, task).delay("next"))
    other = workers.start(DOORS, pool=pool, concurrency=2)

    stopping.quit()
    stopping.wait_for_log("Initiating Soft Shutdown")
    journal.let_go("first")

    [found] = journal.wait_running(1, "next")
    assert found.worker.startswith(other.name)
    until(lambda: first.state == "SUCCESS")
    assert journal.running("longest")
    journal.let_all_go()
    journal.wait_finished(3)
    state.wait_empty()
    assert counts(journal) == {"longest": 1, "first": 1, "next": 1}
    stopping.kill()  # which would sleep on


@pytest.mark.parametrize("task", ["hold", "hold_late"])
@pytest.mark.parametrize("before", ["warm", "running"])
def test_threads_that_a_cold_shutdown_cannot_end(
    workers: Workers, journal: Journal, state: State, task: str, before: str
) -> None:
    """Celery's pool of threads cannot end them, and Python waits for them: until then they have their permits."""
    stopping = workers.start(DOORS, pool="threads", concurrency=2)
    app = workers.app(DOORS)
    getattr(app, task).delay("first")
    journal.wait_running(1)
    state.wait_parked(getattr(app, task).delay("next"))
    workers.start(DOORS, concurrency=1)

    if before == "warm":
        stopping.term()
        stopping.wait_for_log("Warm shutdown")
        always(lambda: counts(journal) == {"first": 1}, seconds=0.5)
    stopping.quit()
    always(lambda: counts(journal) == {"first": 1}, seconds=2)
    journal.let_all_go()

    stopping.wait()
    journal.wait_finished(2)
    state.wait_clean()
    assert counts(journal) == {"first": 1, "next": 1}
    assert most_at_once(journal, f".{task}") == 1


def test_a_task_is_handed_to_a_thread_in_a_cold_shutdown(workers: Workers, journal: Journal, state: State) -> None:
    """The signal handler raises in the middle of that; the thread goes on."""
    stopping = workers.start(CUSTOM, pool="threads", concurrency=2)
    app = workers.app(CUSTOM)
    journal.wait_begun(app.hooked.delay("handed", 60))
    stopping.wait_for_log(r"Hitting Ctrl\+C|Cold shutdown")
    app.hooked.delay("next", 0)
    workers.start(CUSTOM, concurrency=1)

    always(lambda: counts(journal) == {"handed": 1}, seconds=2)
    journal.let_go("handed")

    stopping.wait()
    journal.wait_finished(2)
    state.wait_clean()
    assert counts(journal) == {"handed": 1, "next": 1}
    assert journal.max_running() == 1


@pytest.mark.parametrize(
    ("pool", "soft"), [("prefork", 0), ("prefork", 1), ("threads", 0), ("threads", 1), ("solo", 0)]
)
@pytest.mark.parametrize("name", ["plain", "hooked"])
def test_a_message_that_arrives_in_a_cold_shutdown(
    workers: Workers, journal: Journal, state: State, pool: str, soft: float, name: str
) -> None:
    """The pool has been stopped, and the loop has not noticed it yet; a soft shutdown was amid a turn of the loop."""
    conf = {"worker_soft_shutdown_timeout": soft, "worker_enable_soft_shutdown_on_idle": True}
    worker = workers.start(CUSTOM, pool=pool, concurrency=2, conf=conf)
    app = workers.app(CUSTOM)

    getattr(app, name).delay("quit", 0)

    worker.wait()
    assert not journal.runs()
    assert "Traceback" not in worker.log()
    workers.start(CUSTOM, concurrency=2)
    redeliver(workers)
    journal.wait_finished(1)
    state.wait_clean()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_counts_arrive_at_the_latest_with_the_end_of_a_worker(
    workers: Workers, journal: Journal, state: State, pool: str
) -> None:
    worker = workers.start(LIMITED, pool=pool, concurrency=2)
    app = workers.app(LIMITED)
    first = journal.wait_begun(app.crowd.delay("first"))
    others = [app.crowd.delay(label) for label in ("second", "third")]
    state.wait_parked(*others)
    returned = app.call.delay("returned", 0.2)
    journal.wait_started(2, "returned")
    journal.let_all_go()
    for each in (first, *others, returned, app.plain.delay("not throttled")):
        each.get(timeout=HANGS_AFTER)
    worker.term()
    worker.wait()

    found, calls = (ThrottleControl(app.app).limit(task).history().total for task in (app.crowd, app.call))
    assert (found.at_once, sum(found.waited), found.parked, found.ended, found.failed) == (1, 2, 2, 3, 0)
    assert 0 < found.run_time < 30
    assert 0 < found.wait_time < 60
    assert (found.sent_back, found.refused, found.duplicates, found.reclaimed) == (0, 0, 0, 0)
    assert calls.sent_back >= 1
    assert (calls.started, calls.ended) == (calls.sent_back + 1, 1)
    assert "Traceback" not in worker.log()
