"""The log lines about a parked task that has gone on, or ended, until the store is asked about it."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest

from celery_throttle import Limit
from celery_throttle.control.reader import Reader
from celery_throttle.worker.reported import notices
from tests.store.terms_caller import TermsCaller, terms


def said(app: Any, caplog: pytest.LogCaptureFixture, task_id: str, others: int) -> list[str]:
    """Return the log lines about a task that was parked a moment ago, with so many others."""
    reader = Reader(app, "")
    link = SimpleNamespace(up=True, send=lambda call, answer: answer(reader.ask(call)))
    calls: Any = SimpleNamespace(link=link, store=reader.store)
    caplog.set_level(logging.INFO, notices.__name__)
    caplog.clear()
    notices._ask_why(SimpleNamespace(name="call", id=task_id), calls, others)
    return [record.getMessage() for record in caplog.records]


def test_notice_of_a_task_that_has_ended_is_left_out(app: Any, caplog: pytest.LogCaptureFixture) -> None:
    assert said(app, caplog, "ended", 0) == []
    assert said(app, caplog, "ended", 3) == ["Task call[ended] parked for a moment; and 3 more in the last second"]


def test_notice_of_a_running_task_reports_that_it_was_parked(
    app: Any, worker: TermsCaller, caplog: pytest.LogCaptureFixture
) -> None:
    worker.arrive("runs", terms(Limit("api", 2)).same)
    assert said(app, caplog, "runs", 0) == ["Task call[runs] parked for a moment"]
