"""Log lines of a worker: permits of a lost worker, and tasks that are parked while it throttles nothing."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_throttle import RateLimited, Throttled
from celery_throttle.core.task_codes import TaskNames, code_of
from celery_throttle.errors import ThrottleError
from celery_throttle.store.exchange_reply import Cleared, read_cleared
from celery_throttle.store.reclaimed import reclaimed_text
from celery_throttle.worker import parked_leftovers
from celery_throttle.worker.celery_side.unthrottled import fail_rate_limited

TASKS = TaskNames({"shop.call": {"api"}, "shop.sync": {"shop.sync"}})
LOST = Cleared("t1", "1:api", "w1", code_of("shop.call", {"api"}), 72.4)
WHY = "worker w1 is lost or cut off from the store, and the lease ended 1m 12s ago"


@pytest.mark.parametrize(
    ("holder", "text"),
    [
        (LOST, f"Permit of limit api reclaimed from task shop.call[t1]: {WHY}"),
        (Cleared("t1", "1:api", code="ffffffff"), "Permit of limit api reclaimed from task t1"),
        (Cleared("t1", "1:shop.sync"), "Permit of limit shop.sync reclaimed from task shop.sync[t1]"),
        (Cleared("t1", "1:tenant\x1facme"), "Permit of limit tenant[acme] reclaimed from task t1"),
        (Cleared("t1", ""), "Identity lock reclaimed from task t1"),
        (Cleared("t\x1b[2J", "1:api\x07"), r"Permit of limit api\x07 reclaimed from task t\x1b[2J"),
    ],
)
def test_reclaimed_permit_is_logged_with_the_available_facts(holder: Cleared, text: str) -> None:
    assert reclaimed_text(holder, TASKS) == text


def test_row_of_a_lost_holder_may_have_task_and_needs_alone() -> None:
    assert read_cleared(b"t1", b"1:api") == Cleared("t1", "1:api")
    assert read_cleared(b"t1", b"1:api", b"w1:2", b"c", 1500) == Cleared("t1", "1:api", "w1", "c", 1.5)


@pytest.mark.parametrize(
    ("count", "more", "words"),
    [(1, False, "1 task is parked"), (2, False, "2 tasks are parked"), (100, True, "100 or more tasks are parked")],
)
def test_warning_while_throttling_is_off_counts_parked_tasks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, count: int, more: bool, words: str
) -> None:
    monkeypatch.setattr(parked_leftovers, "_parked", lambda app, group: (count, more))
    monkeypatch.setattr(parked_leftovers, "groups_of", lambda app: [""])
    app = Celery("left", broker="redis://127.0.0.1:1/0", set_as_current=False)
    assert parked_leftovers.parked_tasks_left(app)
    assert f"throttle_enabled is False, and {words}" in caplog.text


def test_a_second_worker_that_throttles_nothing_changes_no_task() -> None:
    """Each would add a call around the body: tests that start a worker each time come to Python's limit in the end."""
    app = Celery(set_as_current=False)

    @app.task(shared=False, base=Throttled, limit=1)
    def asks() -> None:
        raise RateLimited(30)

    app.finalize()
    fail_rate_limited(*app.tasks.values())
    run = asks.run
    fail_rate_limited(*app.tasks.values())
    assert asks.run is run
    with pytest.raises(ThrottleError, match="no worker runs it again"):
        asks.run()
