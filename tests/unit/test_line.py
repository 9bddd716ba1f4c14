"""The rows of a call about waiting callers outside of tasks."""

from __future__ import annotations

from celery_throttle.permits.line import Asking, Batch
from celery_throttle.store.exchange import Arrival


def test_caller_in_line_sends_the_age_of_its_request() -> None:
    """Its place is the moment at which it asked, however long the store took to refuse it."""
    early, late = (Asking(Arrival(task, "1:gpu", "q"), waits=True) for task in ("early", "late"))
    early.came -= 60
    said = Batch(lining=[late, early]).exchange(0, lease=10.0)
    ages = {each.task: each.age for each in said.arrived}
    assert ages["early"] - ages["late"] > 59
    assert 0 <= ages["late"] < 59
