"""A frozen worker, as ``report`` and ``explain`` show it."""

from __future__ import annotations

from celery_throttle import ThrottleControl
from tests.failures.test_once_lost import ONCE, started
from tests.failures.tools import AT_ONCE, WITHIN_LEASE
from tests.support.journal import Journal
from tests.support.waiting import until
from tests.support.workers import Workers


def test_frozen_worker_is_an_alarm(workers: Workers, journal: Journal) -> None:
    frozen, app, first = started(workers, journal, "hold")
    throttle = ThrottleControl(app.app)

    def kinds() -> set[str]:
        return {each.kind for each in throttle.report().alarms}

    assert not kinds() & {"silent", "lost"}
    frozen.freeze()
    until(lambda: "silent" in kinds(), timeout=WITHIN_LEASE)
    frozen.thaw()
    until(lambda: not kinds() & {"silent", "lost"}, timeout=AT_ONCE)
    journal.let_go("a")
    assert first.get(timeout=WITHIN_LEASE) == "a"


def test_run_once_task_of_a_frozen_worker(workers: Workers, journal: Journal) -> None:
    """After its lease: where it ran, and that a second run may be beside it; all is forgotten when both have ended."""
    frozen, app, first = started(workers, journal, "hold")
    frozen.freeze()
    workers.start(ONCE, concurrency=1)
    throttle = ThrottleControl(app.app)
    until(lambda: throttle.explain(first.id).state == "lost", timeout=WITHIN_LEASE)
    assert f"It ran on worker {frozen.name}@" in throttle.explain(first.id).reasons[0]
    second = app.hold.delay("a")
    journal.wait_running(2, "a")
    (found,) = [each for each in throttle.report().alarms if each.kind == "runs-twice"]
    assert (first.id in found.what, second.id in found.what) == (True, True)
    frozen.thaw()
    until(lambda: "and task" in _twice(throttle) and "may still" not in _twice(throttle), timeout=WITHIN_LEASE)
    journal.let_go("a")
    assert second.get(timeout=WITHIN_LEASE) == "a"
    until(lambda: not _twice(throttle) and throttle.explain(first.id).state == "unknown", timeout=WITHIN_LEASE)


def _twice(throttle: ThrottleControl) -> str:
    return "".join(each.what for each in throttle.report().alarms if each.kind == "runs-twice")
