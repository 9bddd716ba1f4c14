"""The warning of a worker that starts while ``throttle_enabled`` is False, and tasks are parked."""

from __future__ import annotations

import pytest
from celery import Celery

from celery_throttle.worker import parked_leftovers


@pytest.mark.parametrize(
    ("count", "more", "words"),
    [(1, False, "1 task is parked"), (2, False, "2 tasks are parked"), (100, True, "100 or more tasks are parked")],
)
def test_warning_counts_the_parked_tasks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, count: int, more: bool, words: str
) -> None:
    monkeypatch.setattr(parked_leftovers, "_parked", lambda app, group: (count, more))
    monkeypatch.setattr(parked_leftovers, "groups_of", lambda app: [""])
    app = Celery("left", broker="redis://127.0.0.1:1/0", set_as_current=False)
    assert parked_leftovers.parked_tasks_left(app)
    assert f"throttle_enabled is False, and {words}" in caplog.text
