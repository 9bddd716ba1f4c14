"""Messages that are published while the store is away: workers check them."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery
from celery.signals import before_task_publish

from celery_throttle import Throttled
from celery_throttle.core.identity import IDENTITY_LENGTH
from celery_throttle.tasks.publish import HEADER


def nothing() -> None:
    """Be a task."""


@pytest.mark.parametrize(("retries", "claim"), [(1, "1800000000000000"), (0, "0")])
def test_a_retry_is_as_old_as_its_call(retries: int, claim: str) -> None:
    """Other messages get their place when they arrive."""
    app: Any = Celery("unchecked", broker="memory://", set_as_current=False)
    app.conf.throttle_url = "redis://127.0.0.1:1/0"
    task = app.task(shared=False, base=Throttled, singleton=True, on_conflict="keep_last")(nothing)
    carried = {"identity": "a" * IDENTITY_LENGTH, "claim": "1800000000000000", "on_conflict": "keep_last", "first": ""}
    sent: list[Any] = []

    def note(headers: Any, **_: object) -> None:
        sent.append(headers[HEADER]["claim"])

    before_task_publish.connect(note, weak=False, dispatch_uid="unchecked")
    try:
        task.apply_async(task_id="t", retries=retries, headers={HEADER: carried})
    finally:
        before_task_publish.disconnect(note, dispatch_uid="unchecked")
    assert sent == [claim]
