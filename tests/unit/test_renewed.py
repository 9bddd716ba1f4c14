"""The calls that renew leases."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

from celery_throttle.core.keys import Keys
from celery_throttle.store.calls import Store
from celery_throttle.store.exchange import Arrival
from celery_throttle.store.portions import MOST_RENEWED
from celery_throttle.store.scripts import Call
from celery_throttle.worker.runs import Permit
from celery_throttle.worker.store_side.renewals import renewals


def permit(task: str, *, goes_back: bool = False) -> Permit:
    run: Any = SimpleNamespace(arrival=Arrival(task, "1:gpu", nonce=f"w:{task}"))
    made = Permit(run)
    if goes_back:
        made.go_back()
    return made


def said(call: Call) -> tuple[int, list[str]]:
    """Return after which call it was put together, and the holders that it renews."""
    text = json.loads(str(call.arguments[-1]))
    return text["number"], [row["task"] for row in text["held"]]


def test_task_going_back_is_renewed_and_never_put_back() -> None:
    """The store puts nothing back if it has a later call of the worker, as it does of any after this number."""
    permits = [permit("a"), permit("b", goes_back=True), permit("c")]
    pages = list(renewals(Store(Keys("x"), 12.0), "w", 7, permits))
    assert [said(page.call) for page in pages] == [(7, ["a", "c"]), (-1, ["b"])]
    assert [[each for each, _ in page.rows] for page in pages] == [[permits[0], permits[2]], [permits[1]]]


def test_many_are_renewed_in_pages() -> None:
    permits = [permit(str(number)) for number in range(MOST_RENEWED + 1)]
    pages = [[each for each, _ in page.rows] for page in renewals(Store(Keys("x"), 12.0), "w", 7, permits)]
    assert [len(some) for some in pages] == [MOST_RENEWED, 1]
    assert [each for some in pages for each in some] == permits
