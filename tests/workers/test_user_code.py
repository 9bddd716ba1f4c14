"""Code of users that raises `SystemExit`, or takes its time, costs its own task or receiver, and no other task."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Worker, Workers

RUDE = "tests.support.apps.rude"
POOLS = ["prefork", "threads", "gevent", "solo"]
LEASE = 2


def send(app: Any, name: str, *args: str, **how: Any) -> Any:
    """Publish without the options, as another program does."""
    return app.app.send_task(f"{RUDE}.{name}", args, **how)


def assert_others_run(app: Any, journal: Journal, worker: Worker) -> None:
    journal.let_all_go()
    for name in ("key", "cost", "unique", "hold", "plain"):
        assert send(app, name, f"good {name}").get(timeout=HANGS_AFTER) == f"good {name}"
    assert worker.running


@pytest.mark.parametrize("pool", POOLS)
def test_option_that_exits_fails_its_task(workers: Workers, journal: Journal, state: State, pool: str) -> None:
    worker = workers.start(RUDE, pool=pool)
    app = workers.app(RUDE)
    bad = {name: send(app, name, "bad") for name in ("key", "cost", "unique")}
    for name, result in bad.items():
        error = result.get(timeout=HANGS_AFTER, propagate=False)
        assert (result.state, "SystemExit('rude')" in str(error)) == ("FAILURE", True), (name, error, worker.tail())
    assert_others_run(app, journal, worker)
    state.wait_empty()


def test_payload_of_a_parked_task_that_exits_fails_the_task(workers: Workers, journal: Journal, state: State) -> None:
    """Its message is decoded a second time, by the worker that has its permit."""
    app = workers.start_app(RUDE)
    limit = state.limit(f"{RUDE}.hold")
    limit.pause()
    result = send(app, "hold", "bad", serializer="rude")
    state.wait_parked(result)
    journal.let_go("decode")
    limit.resume()
    assert "SystemExit('rude')" in str(result.get(timeout=HANGS_AFTER, propagate=False))
    assert_others_run(app, journal, workers.started[0])
    state.wait_empty()


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("error", ["WorkerShutdown", "WorkerTerminate"])
def test_option_that_stops_the_worker_leaves_the_task_to_the_next(
    workers: Workers, journal: Journal, state: State, pool: str, error: str
) -> None:
    worker = workers.start(RUDE, pool=pool, env={"RAISES": error})
    app = workers.app(RUDE)
    result = send(app, "key", "bad")
    assert worker.wait() == (3 if error == "WorkerShutdown" else 0), worker.tail()  # as Celery does
    workers.start(RUDE, pool=pool)
    assert "SystemExit('rude')" in str(result.get(timeout=HANGS_AFTER, propagate=False))
    journal.let_all_go()
    state.wait_empty()


# -- receivers ---------------------------------------------------------------------------------------------------------


def heard(journal: Journal) -> set[tuple[str, str]]:
    return {(each["name"], each["task_id"]) for each in journal.events() if each["event"] == "signal"}


def lose_leases(worker: Worker, journal: Journal) -> None:
    """Freeze a worker until the one of the queue ``other`` has taken a permit over."""
    worker.freeze()
    until(lambda: journal.runs("next"))
    worker.thaw()


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_receiver_that_exits_costs_nothing(workers: Workers, journal: Journal, state: State, pool: str) -> None:
    """Each signal has one, and another receiver after it, which gets the signal."""
    workers.conf["throttle_lease"] = LEASE
    first = workers.start(RUDE, pool=pool, concurrency=4, env={"RECEIVERS": "exit"})
    workers.start(RUDE, pool=pool, queues="other", env={"RECEIVERS": "exit"})
    app = workers.app(RUDE)
    running = send(app, "hold", "first")
    journal.wait_running(1, "first")
    once, parked = send(app, "skips", "once"), send(app, "hold", "next", queue="other")
    journal.wait_running(1, "once")
    state.wait_parked(parked)
    duplicate = send(app, "skips", "once")
    until(lambda: ("duplicate_dropped", duplicate.id) in heard(journal), describe=first.tail)
    lose_leases(first, journal)
    expected = {
        ("task_parked", parked.id),
        ("permit_reclaimed", running.id),
        ("task_resumed", parked.id),
        ("lease_lost", running.id),
        ("duplicate_dropped", duplicate.id),
    }
    until(lambda: expected <= heard(journal), describe=lambda: f"{heard(journal)}\n{first.tail()}")
    journal.let_all_go()
    assert once.get(timeout=HANGS_AFTER) == "once"
    assert_others_run(app, journal, first)
    state.wait_empty()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_slow_receiver_of_a_lost_lease_costs_no_other_lease(
    workers: Workers, journal: Journal, state: State, pool: str
) -> None:
    workers.conf["throttle_lease"] = LEASE
    first = workers.start(RUDE, pool=pool, concurrency=4, env={"RECEIVERS": "wait"})
    workers.start(RUDE, pool=pool, queues="other")
    app = workers.app(RUDE)
    running = send(app, "hold", "first")
    journal.wait_running(1, "first")
    send(app, "hold", "next", queue="other")
    state.wait_parked(1)
    lose_leases(first, journal)
    until(lambda: ("lease_lost", running.id) in heard(journal), describe=first.tail)

    held = send(app, "other", "held")
    journal.wait_running(1, "held")
    begin = state.lease_end(held.id)
    until(lambda: state.lease_end(held.id) > begin + 2 * LEASE, describe="The lease was not renewed.")

    assert not any(name == "lease_lost" and task == held.id for name, task in heard(journal))
    journal.let_all_go()
    assert held.get(timeout=HANGS_AFTER) == "held"
    state.wait_empty()


# -- the gate itself ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("pool", "thread"), [*((pool, "timekeeper") for pool in POOLS), ("gevent", "gate")])
def test_dead_thread_stops_the_worker(workers: Workers, journal: Journal, pool: str, thread: str) -> None:
    worker = workers.start(RUDE, pool=pool, env={"DIES": thread})
    app = workers.app(RUDE)
    journal.let_go("good")
    assert send(app, "hold", "good").get(timeout=HANGS_AFTER) == "good"
    journal.let_go("die")
    send(app, "plain", "good")  # wakes the loop
    assert worker.wait() == 1, worker.tail()
    (line,) = [each for each in worker.log().splitlines() if "CRITICAL" in each]
    assert f"the thread celery-throttle-{thread} has died, so this worker stops" in line
    assert "GeneratorExit: a defect" in worker.log()


@pytest.mark.parametrize("pool", ["prefork", "threads"])
@pytest.mark.parametrize("broken", ["count", "end"])
def test_defect_at_the_end_of_a_run_keeps_no_permit(
    workers: Workers, journal: Journal, state: State, pool: str, broken: str
) -> None:
    """Where the end itself is lost, a look finds the permit, within half a lease."""
    workers.conf["throttle_lease"] = LEASE
    worker = workers.start(RUDE, pool=pool, env={"BREAKS": broken})
    app = workers.app(RUDE)
    journal.let_all_go()
    for label in ("first", "second"):
        result = send(app, "hold", label)
        assert result.get(timeout=HANGS_AFTER) == label
    until(lambda: not state.holders, describe=worker.tail)
    assert ("its permit was still held here" in worker.log()) == (broken == "end")


def test_task_that_cannot_go_back_in_line_fails_and_frees_its_permit(workers: Workers, state: State) -> None:
    app = workers.start_app(RUDE, pool="threads")
    bad = app.limited.apply_async(("bad",), headers={"trace": {"id": "1"}})
    assert "object" in str(bad.get(timeout=HANGS_AFTER, propagate=False))
    assert app.limited.delay("good").get(timeout=HANGS_AFTER) == "good"
    state.wait_empty()
