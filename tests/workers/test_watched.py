"""Errors that the library raises for a task reach Sentry as those of a body do: with the task's name and id."""

from __future__ import annotations

from typing import Any

import pytest
from celery import Celery

from tests.support.journal import Journal
from tests.support.state import State
from tests.support.waiting import until
from tests.support.workers import Workers

pytest.importorskip("sentry_sdk")

WATCHED = "tests.support.apps.watched"


def reported(journal: Journal, error: str) -> Any:
    """Wait for the event of an error, and return it."""
    (event,) = until(lambda: [each for each in journal.events() if error in each.get("raised", ())])
    return event


def test_errors_of_the_library_reach_sentry_with_the_task(workers: Workers, journal: Journal, state: State) -> None:
    app = workers.start_app(WATCHED)
    client = Celery(broker=workers.broker, backend=workers.backend, set_as_current=False)
    journal.wait_begun(app.hold.delay("first"))
    sent = {
        (app.fails.name, "ValueError"): app.fails.delay(),
        (app.hold.name, "DuplicateTask"): client.send_task(app.hold.name, ("first",)),
        (app.slowed.name, "ThrottleError"): app.slowed.delay(),
    }

    events = {(task, error): reported(journal, error) for task, error in sent}

    journal.let_all_go()
    for (task, error), event in events.items():
        result = sent[task, error]
        assert event["transaction"] == task
        assert event["transaction_info"] == {"source": "task"}
        assert event["tags"]["celery_task_id"] == result.id
        assert event["extra"]["celery-job"]["task_name"] == task
        own = ["celery_throttle", error, task]
        assert event["fingerprint"] == (None if error == "ValueError" else own), "Sentry groups by frames otherwise"
    state.wait_clean()
