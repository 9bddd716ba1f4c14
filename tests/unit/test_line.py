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


def test_refused_request_gives_back_the_permit_that_its_older_copy_may_get() -> None:
    refused, batch = Batch([Asking(Arrival("t", "1:gpu", "q", nonce="w:1"), waits=False)]), Batch()
    batch.put_back(refused)
    assert [(row.event, row.task, row.nonce) for row, _ in batch.ended] == [("ended", "t", "w:1")]
