"""Tasks that run once, where something dies: nothing runs twice at once, no lock is stuck, nothing is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from celery import chain
from kombu.exceptions import OperationalError

from celery_throttle.embedded import EmbeddedServer
from tests.failures.tools import AT_ONCE, SHORT_LEASE, WITHIN_LEASE, queued, redeliver, unacknowledged
from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Worker, Workers

ONCE = "tests.support.apps.once"
ROOT = Path(__file__).resolve().parents[2]


def started(workers: Workers, journal: Journal, task: str, label: str = "a") -> tuple[Worker, Any, Any]:
    """Start a worker of one process and have it run this task: the worker, the app, the result."""
    workers.conf["throttle_lease"] = SHORT_LEASE
    worker = workers.start(ONCE, concurrency=1)
    app = workers.app(ONCE)
    result = getattr(app, task).delay(label)
    journal.wait_running(1, label)
    return worker, app, result


def tokens(journal: Journal) -> list[int]:
    return [int(event["token"]) for event in journal.events() if event["event"] == "fence"]


def test_fifty_publishes_from_four_processes_are_one_run(workers: Workers, journal: Journal) -> None:
    app = workers.start_app(ONCE, count=2, concurrency=4)
    publisher = (
        f"import sys; sys.path.append({str(ROOT)!r})\n"
        "import threading\n"
        f"from {ONCE} import hold\n"
        "barrier = threading.Barrier(13)\n"
        "ids = []\n"
        "def publish():\n"
        "    barrier.wait()\n"
        "    ids.append(hold.delay('a').id)\n"
        "threads = [threading.Thread(target=publish) for _ in range(13)]\n"
        "[thread.start() for thread in threads]; [thread.join() for thread in threads]\n"
        "print(*ids)\n"
    )
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", publisher], env={**workers.environment(), "PATH": ""}, stdout=subprocess.PIPE
        )
        for _ in range(4)
    ]
    ids = {line for process in processes for line in process.communicate(timeout=60)[0].split()}
    assert len(ids) == 1, ids
    journal.wait_running(1, "a")
    journal.let_go("a")
    app.hold.AsyncResult(ids.pop().decode()).get(timeout=AT_ONCE)
    assert len(journal.runs()) == 1


def test_worker_killed_while_its_task_runs_early_acknowledgement(workers: Workers, journal: Journal) -> None:
    """The message is gone, as Celery has it; the lock is free within one lease, and the next publish runs."""
    lost, app, first = started(workers, journal, "hold")
    lost.kill()
    workers.start(ONCE, concurrency=1)
    until(lambda: app.hold.locked_by("a") is None, timeout=WITHIN_LEASE)
    second = app.hold.delay("a")
    assert second.id != first.id
    journal.let_go("a")
    assert second.get(timeout=WITHIN_LEASE) == "a"
    assert tokens(journal) == sorted(set(tokens(journal)))


def test_worker_killed_while_its_task_runs_late_acknowledgement(workers: Workers, journal: Journal) -> None:
    """Celery delivers it again, it runs again, under the same id; a duplicate that waited has its outcome."""
    lost, _, first = started(workers, journal, "hold_late")
    lost.kill()
    redeliver(workers)
    workers.start(ONCE, concurrency=2)
    journal.let_go("a")
    assert first.get(timeout=WITHIN_LEASE) == "a"
    assert {run.task_id for run in journal.runs()} == {first.id}
    assert len(tokens(journal)) == 2
    assert tokens(journal)[0] < tokens(journal)[1]


def test_worker_killed_with_queued_and_parked_ones(workers: Workers, journal: Journal) -> None:
    workers.conf["worker_prefetch_multiplier"] = 4
    lost, app, _ = started(workers, journal, "hold_late", "running")
    waits = app.hold_late.delay("queued")
    until(lambda: len(unacknowledged(workers)) == 2, timeout=AT_ONCE)  # received, waiting for a slot
    lost.kill()
    assert app.hold_late.delay("queued").id == waits.id
    redeliver(workers)
    workers.start(ONCE, concurrency=2)
    assert app.hold_late.delay("queued").id == waits.id
    journal.let_go("running", "queued")
    assert waits.get(timeout=WITHIN_LEASE) == "queued"
    journal.wait_finished(2, timeout=WITHIN_LEASE)
    assert sorted(run.label for run in journal.runs()) == ["queued", "running", "running"]


def test_followers_run_when_the_first_is_lost(workers: Workers, journal: Journal, state: State) -> None:
    """A caller waits for a duplicate: when the first is lost for good, the duplicate runs, once."""
    lost, app, _ = started(workers, journal, "hold")
    workers.start(ONCE, concurrency=2)
    duplicates = [app.app.send_task(app.hold.name, args=["a"]) for _ in range(3)]
    # Parked, or waiting for a slot of the first worker; on its way between the two, Celery itself would lose it.
    until(lambda: len(unacknowledged(workers)) + len(state.parked) == 3, timeout=AT_ONCE)
    lost.kill()
    redeliver(workers)
    journal.wait_started(2, "a", timeout=WITHIN_LEASE)
    journal.let_go("a")
    assert [duplicate.get(timeout=WITHIN_LEASE) for duplicate in duplicates] == ["a"] * 3
    assert len(journal.runs()) == 2


def test_killed_after_the_body_and_before_the_acknowledgement(workers: Workers, journal: Journal) -> None:
    """A remembered success does not run again, though its worker never saw its end."""
    lost, app, first = started(workers, journal, "hold_remembered")
    lost.freeze()
    journal.let_go("a")
    assert first.get(timeout=AT_ONCE) == "a"
    until(lambda: app.hold_remembered.locked_by("a").state == "done", timeout=AT_ONCE)
    assert len(unacknowledged(workers)) == 1
    lost.kill()
    redeliver(workers)
    workers.start(ONCE, concurrency=1)
    until(lambda: not unacknowledged(workers) and app.hold_remembered.locked_by("a").state == "done", timeout=AT_ONCE)
    other = app.app.send_task(app.hold_remembered.name, args=["a"])
    assert other.get(timeout=WITHIN_LEASE) == "a"
    assert len(journal.runs()) == 1


def test_a_visibility_timeout_shorter_than_the_task(workers: Workers, journal: Journal) -> None:
    """The broker delivers the message again and again while the task runs: it runs once."""
    workers.conf["throttle_lease"] = SHORT_LEASE
    app = workers.start_app(ONCE, count=2, concurrency=2)
    first = app.hold_remembered.delay("a")
    unremembered = app.hold_late.delay("b")
    journal.wait_running(2)
    for _ in range(3):
        redeliver(workers)
        # The copies wait beside the running ones, unacknowledged no more.
        until(lambda: not queued(workers) and not unacknowledged(workers), timeout=AT_ONCE)
    assert len(journal.runs()) == 2
    journal.let_go("a", "b")
    assert first.get(timeout=AT_ONCE) == "a"
    assert unremembered.get(timeout=AT_ONCE) == "b"
    until(lambda: not unacknowledged(workers), timeout=AT_ONCE)
    until(lambda: app.hold_late.locked_by("b") is None, timeout=WITHIN_LEASE)
    redeliver(workers)
    assert len(journal.runs()) == 2
    assert journal.max_running("a") == journal.max_running("b") == 1


@pytest.mark.parametrize("conflict", ["replace", "keep_last"])
def test_the_newest_under_fire(workers: Workers, journal: Journal, conflict: str) -> None:
    """Published by several threads while two workers run it: never two at once, and the last one counts."""
    workers.conf["throttle_lease"] = 60
    app = workers.start_app(ONCE, count=2, concurrency=2)
    task = app.hold_replace if conflict == "replace" else app.hold_last
    results = []
    for number in range(60):
        journal.let_go(str(number))
        results.append(task.delay(str(number)))
    until(lambda: all(result.ready() for result in results), timeout=WITHIN_LEASE)
    assert journal.max_running() == 1
    states = [result.state for result in {result.id: result for result in results}.values()]
    assert set(states) <= {"SUCCESS", "REVOKED"}
    assert states.count("SUCCESS") == len({run.task_id for run in journal.runs()}) == len(journal.runs())
    if conflict == "keep_last":
        assert states[-1] == "SUCCESS"
        assert journal.runs()[-1].label == "59"
    until(lambda: task.locked_by("x") is None, timeout=AT_ONCE)


def test_redis_restarted_empty_the_holder_keeps_its_lock(
    own_server: EmbeddedServer, workers: Workers, journal: Journal
) -> None:
    """A running task puts its lock back; tokens grow all the same."""
    workers.conf["throttle_lease"] = SHORT_LEASE
    app = workers.start_app(ONCE, concurrency=2)
    first = app.hold.delay("a")
    app.hold.delay("b")
    journal.wait_running(2)
    # Celery's worker may end with an AttributeError of kombu's if its broker goes while it has messages of that.
    until(lambda: not unacknowledged(workers), timeout=AT_ONCE)
    own_server.restart()

    def back() -> bool:
        found = app.hold.locked_by("a")
        return found is not None and found.task_id == first.id and found.state == "running"

    until(back, timeout=WITHIN_LEASE)
    assert app.hold.delay("a").id == first.id
    journal.let_go("a", "b")
    until(lambda: app.hold.locked_by("a") is None, timeout=WITHIN_LEASE)
    assert app.hold.delay("a").get(timeout=WITHIN_LEASE) == "a"
    assert len(journal.runs()) == 3
    assert tokens(journal)[-1] > max(tokens(journal)[:-1])


def test_store_down_at_publish_the_gate_still_checks(workers: Workers, journal: Journal, store: EmbeddedServer) -> None:
    app = workers.app(ONCE)
    store.stop()
    results = [app.hold.delay("a") for _ in range(3)]
    assert len({result.id for result in results}) == 3
    store.start()
    workers.conf["throttle_url"] = store.url
    workers.start(ONCE, concurrency=4)
    journal.wait_running(1, "a")
    journal.let_go("a")
    assert [result.get(timeout=WITHIN_LEASE) for result in results] == ["a"] * 3
    assert len(journal.runs()) == 1


def test_store_down_at_publish_nothing_of_a_canvas_is_skipped(
    workers: Workers, journal: Journal, store: EmbeddedServer
) -> None:
    app = workers.app(ONCE)
    store.stop()
    chains = [chain(app.hold_skip.si("a"), app.note.s(f"chain {number}")).apply_async() for number in range(2)]
    store.start()
    workers.conf["throttle_url"] = store.url
    workers.start(ONCE, concurrency=4)
    journal.wait_running(1, "a")
    journal.let_go("a")
    assert [each.get(timeout=WITHIN_LEASE) for each in chains] == ["chain 0", "chain 1"]


def test_a_failed_publish_frees_the_lock(workers: Workers, store: EmbeddedServer) -> None:
    assert store.running
    workers.broker = "redis://127.0.0.1:1/0"
    workers.conf["broker_transport_options"] = {"socket_connect_timeout": 0.5}
    app = workers.app(ONCE)
    with pytest.raises((OperationalError, ConnectionError)):
        app.hold.apply_async(["a"], retry=False)
    assert app.hold.locked_by("a") is None


def test_wrong_clocks_do_not_matter(workers: Workers, journal: Journal) -> None:
    """One worker's clock is a day ahead, the other's a day behind: leases and locks go by the store's."""
    workers.conf["throttle_lease"] = SHORT_LEASE
    workers.start(ONCE, concurrency=1, env={"CLOCK_SKEW": "86400"}, wait=False).wait_ready()
    workers.start(ONCE, concurrency=1, env={"CLOCK_SKEW": "-86400"}, wait=False).wait_ready()
    app = workers.app(ONCE)
    first = journal.wait_begun(app.hold_late.delay("a"))
    duplicate = app.app.send_task(app.hold_late.name, args=["a"])
    assert 0 < app.hold_late.locked_by("a").expires_in <= SHORT_LEASE
    # Two renewals long: the lock of a live worker stays.
    renewed = [app.hold_late.locked_by("a").expires_in]

    def renewed_twice() -> bool:
        left = app.hold_late.locked_by("a").expires_in
        if left > renewed[-1]:
            renewed.append(left)
        elif left < renewed[-1]:
            renewed[-1] = left
        return len(renewed) > 2

    until(renewed_twice, timeout=WITHIN_LEASE)
    journal.let_go("a")
    assert first.get(timeout=AT_ONCE) == "a"
    assert duplicate.get(timeout=AT_ONCE) == "a"
    assert len(journal.runs()) == 1
