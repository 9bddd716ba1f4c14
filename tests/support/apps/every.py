"""An app in which every task can be throttled, with the option alone."""

from __future__ import annotations

import time
from typing import Any

from tests.support.apps import new_app
from tests.support.journal import Journal

app = new_app("every", task_cls="celery_throttle:Throttled")


def _record(task: Any, label: str) -> str:
    with Journal.from_environment().run(task.request, label):
        time.sleep(0.1)
    return label


@app.task(shared=False, bind=True, limit=2)
def work(self: Any, label: str) -> str:
    return _record(self, label)


@app.task(shared=False, bind=True, limit=1)
def annotated(self: Any, label: str) -> str:
    """The settings give it another limit."""
    return _record(self, label)


@app.task(shared=False, bind=True)
def plain(self: Any, label: str) -> str:
    return _record(self, label)


@app.task(shared=False)
def collect(labels: list[str]) -> list[str]:
    """The end of a chord."""
    return sorted(labels)
