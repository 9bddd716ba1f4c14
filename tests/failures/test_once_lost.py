"""Tasks that run once, where something dies: nothing runs twice at once, no lock is stuck, nothing is lost."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from celery_throttle import ThrottleControl
from celery_throttle.tasks import publish
from tests.failures.tools import DIES, ONCE, SHORT_LEASE, redeliver, unacknowledged
from tests.support.journal import Journal
from tests.support.remote import throttle_in
from tests.support.waiting import HANGS_AFTER, until
from tests.support.workers import Worker, Workers

#: The settings of a release in which this task is no singleton.
NO_SINGLETON: dict[str, Any] = {"task_annotations": {f"{ONCE}.hold_remembered": {"singleton": False, "remember": None}}}


def started(workers: Workers, journal: Journal, task: str, label: str = "a", **conf: Any) -> tuple[Worker, Any, Any]:
    """Start a worker of one process and have it run this task: the worker, the app, the result."""
    worker = workers.start(ONCE, concurrency=1, conf=DIES | conf)
    app = workers.app(ONCE)
    return worker, app, journal.wait_begun(getattr(app, task).delay(label))


def test_worker_killed_with_queued_and_parked_ones(workers: Workers, journal: Journal) -> None:
    workers.conf["worker_prefetch_multiplier"] = 4
    lost, app, _ = started(workers, journal, "hold_late", "running")
    waits = app.hold_late.delay("queued")
    until(lambda: len(unacknowledged(workers)) == 2)  # received, waiting for a slot
    lost.kill()
    assert app.hold_late.delay("queued").id == waits.id
    redeliver(workers)
    workers.start(ONCE, concurrency=2)
    assert app.hold_late.delay("queued").id == waits.id
    journal.let_go("running", "queued")
    assert waits.get(timeout=HANGS_AFTER) == "queued"
    journal.wait_finished(2)
    assert sorted(run.label for run in journal.runs()) == ["queued", "running", "running"]


def killed_after_the_body(workers: Workers, journal: Journal, **conf: Any) -> tuple[Any, Any]:
    """Kill a worker whose child has remembered a success, of which the worker has seen nothing: the app, the result.

    The broker delivers the message again.
    """
    lost, app, first = started(workers, journal, "hold_remembered", **conf)
    lost.freeze()
    journal.let_go("a")
    assert first.get(timeout=HANGS_AFTER) == "a"
    until(lambda: app.hold_remembered.locked_by("a").state == "done")
    assert len(unacknowledged(workers)) == 1
    lost.kill()
    redeliver(workers)
    return app, first


def test_killed_after_the_body_and_before_the_acknowledgement(workers: Workers, journal: Journal) -> None:
    """A remembered success does not run again, though its worker never saw its end."""
    app, _ = killed_after_the_body(workers, journal)
    workers.start(ONCE, concurrency=1)
    until(lambda: not unacknowledged(workers) and app.hold_remembered.locked_by("a").state == "done")
    other = app.app.send_task(app.hold_remembered.name, args=["a"])
    assert other.get(timeout=HANGS_AFTER) == "a"
    assert len(journal.runs()) == 1


def test_killed_after_the_body_of_a_message_with_a_lock(workers: Workers, journal: Journal) -> None:
    """The success is remembered as the message asks, also by workers whose release has no singleton of that name."""
    app, first = killed_after_the_body(workers, journal, **NO_SINGLETON)
    workers.start(ONCE, concurrency=1, conf=NO_SINGLETON)
    until(lambda: not unacknowledged(workers))
    assert app.hold_remembered.delay("a").id == first.id
    assert len(journal.runs()) == 1


def test_wrong_clocks_do_not_matter(workers: Workers, journal: Journal) -> None:
    """One worker's clock is a day ahead, the other's a day behind: leases and locks go by the store's."""
    workers.conf["throttle_lease"] = SHORT_LEASE
    for skew in ("86400", "-86400"):
        workers.start(ONCE, concurrency=1, env={"CLOCK_SKEW": skew})
    app = workers.app(ONCE)
    first = journal.wait_begun(app.hold_late.delay("a"))
    duplicate = app.app.send_task(app.hold_late.name, args=["a"])
    began = time.monotonic()
    assert 0 < app.hold_late.locked_by("a").expires_in <= SHORT_LEASE
    until(lambda: time.monotonic() > began + 2 * SHORT_LEASE)
    until(lambda: 0 < app.hold_late.locked_by("a").expires_in <= SHORT_LEASE)  # it was renewed
    journal.let_go("a")
    assert first.get(timeout=HANGS_AFTER) == "a"
    assert duplicate.get(timeout=HANGS_AFTER) == "a"
    assert len(journal.runs()) == 1


def test_frozen_worker(workers: Workers, journal: Journal) -> None:
    """An alarm at once; after its lease, that a second run may be beside it. All is forgotten when both have ended."""
    workers.conf |= DIES  # also of the reader, which knows by its own how often a lease is renewed
    frozen, app, first = started(workers, journal, "hold_one")
    throttle = ThrottleControl(app.app)

    def alarms() -> dict[str, str]:
        return {each.kind: each.what for each in throttle.report().alarms}

    assert [each.task_name for each in throttle.holders()] == [app.hold_one.name]
    until(lambda: not alarms().keys() & {"silent", "lost"})
    frozen.freeze()
    until(lambda: "silent" in alarms())
    workers.start(ONCE, concurrency=1)
    until(lambda: throttle.explain(first.id).state == "lost")
    assert f"It ran on worker {frozen.name}@" in throttle.explain(first.id).reasons[0]
    second = app.hold_one.delay("a")
    journal.wait_running(2, "a")
    assert "may still" in alarms()["runs-twice"]
    assert (first.id in alarms()["runs-twice"], second.id in alarms()["runs-twice"]) == (True, True)
    frozen.thaw()
    frozen.wait_for_log(rf"lease_lost: task {ONCE}\.hold_one\[{first.id}\]")
    (held,) = throttle_in(app.app, frozen)["held"]["tasks"]
    assert (held["task_id"], held["lease_lost"], held["runs"]) == (first.id, True, True)
    until(lambda: "may still" not in alarms().get("runs-twice", "may still"))
    assert "and task" in alarms()["runs-twice"]
    until(lambda: not alarms().keys() & {"silent", "lost"})
    journal.let_go("a")
    assert [each.get(timeout=HANGS_AFTER) for each in (first, second)] == ["a", "a"]
    until(lambda: "runs-twice" not in alarms() and throttle.explain(first.id).state == "unknown")


@pytest.mark.parametrize("name", ["hold", "hold_late", "hold_raise"])
def test_call_right_after_the_result_of_the_first_runs(
    workers: Workers, journal: Journal, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The child has stored the result; its worker stands still, and reports the end of the run a moment later."""
    worker, app, first = started(workers, journal, name)
    task = getattr(app, name)
    worker.freeze()
    journal.let_all_go()
    assert first.get(timeout=HANGS_AFTER) == "a"
    pauses: list[float] = []

    def paused(seconds: float) -> None:
        pauses.append(seconds)
        worker.thaw()
        until(lambda: task.locked_by("a") is None)

    monkeypatch.setattr(publish, "time", SimpleNamespace(sleep=paused))
    second = task.delay("a")
    monkeypatch.undo()
    assert pauses
    assert second.id != first.id
    assert second.get(timeout=HANGS_AFTER) == "a"
    assert len(journal.runs()) == 2


def test_call_after_a_remembered_result_is_a_duplicate_at_once(
    workers: Workers, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, app, first = started(workers, journal, "hold_remembered")
    journal.let_all_go()
    assert first.get(timeout=HANGS_AFTER) == "a"
    monkeypatch.setattr(publish, "_UNTIL_FREE", ["none"])
    assert app.hold_remembered.delay("a").id == first.id
