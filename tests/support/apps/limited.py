"""Tasks that the outside slows down, and tasks of which only so many may wait."""

from __future__ import annotations

from typing import Any

from celery_throttle import Limit, RateLimited, Throttled
from tests.support.apps import new_app, run_for, run_held
from tests.support.journal import Journal

app = new_app("limited")


def _call(task: Any, label: str, retry_after: float, limit: str | None = None) -> str:
    """Get a "slow down" until the test lets it go."""
    journal = Journal.from_environment()
    with journal.run(task.request, label):
        if not journal.is_let_go(label):
            raise RateLimited(retry_after, limit)
    return f"{label} after {task.request.retries}"


@app.task(shared=False, bind=True, base=Throttled, limit=4)
def call(self: Any, label: str, retry_after: float = 0.2) -> str:
    return _call(self, label, retry_after)


@app.task(shared=False, bind=True, base=Throttled, limit=4, acks_late=True)
def call_late(self: Any, label: str, retry_after: float = 0.2) -> str:
    return _call(self, label, retry_after)


@app.task(shared=False, bind=True, base=Throttled, limit=Limit("api", 2))
def call_about(self: Any, label: str, limit: str) -> str:
    return _call(self, label, 60, limit)


@app.task(shared=False, bind=True)
def plain(self: Any, label: str) -> str:
    """Not throttled."""
    return run_for(self, label)


@app.task(shared=False, bind=True, base=Throttled, singleton=True)
def call_without(self: Any, label: str, retry_after: float = 0.2) -> str:
    """No limit that could hold starts."""
    return _call(self, label, retry_after)


@app.task(shared=False, bind=True, base=Throttled, limit=Limit("crowd", 1, max_parked=2))
def crowd(self: Any, label: str) -> str:
    return run_held(self, label)
