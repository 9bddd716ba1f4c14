"""An app in which every task can be throttled, with the option alone."""

from __future__ import annotations

from typing import Any

from tests.support.apps import new_app, run_for, task_maker

app = new_app("every", task_cls="celery_throttle:Throttled")


def _record(task: Any, label: str) -> str:
    return run_for(task, label, 0.1)


make = task_maker(app, _record)
work = make("work", limit=2)
# The settings give it another limit.
annotated = make("annotated", limit=1)
plain = make("plain")


@app.task(shared=False)
def collect(labels: list[str]) -> list[str]:
    """The end of a chord."""
    return sorted(labels)
