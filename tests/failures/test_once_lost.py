"""Tasks that run once, where something dies: nothing runs twice at once, no lock is stuck, nothing is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.failures.tools import AT_ONCE, SHORT_LEASE, WITHIN_LEASE, redeliver, unacknowledged
from tests.support.journal import Journal
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
