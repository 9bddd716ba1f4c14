"""Tasks that the outside slows down, and tasks of which only so many may wait."""

from __future__ import annotations

from typing import Any

from celery_throttle import Limit, RateLimited, Throttled
from tests.support.apps import new_app, run_for, run_held, task_maker
from tests.support.journal import Journal

app = new_app("limited")


def _call(task: Any, label: str, retry_after: float = 0.2, limit: str | None = None) -> str:
    """Get a "slow down" until the test lets it go."""
    journal = Journal.from_environment()
    with journal.run(task.request, label):
        if not journal.is_let_go(label):
            raise RateLimited(retry_after, limit)
    return f"{label} after {task.request.retries}"


make_call = task_maker(app, _call)
call = make_call("call", base=Throttled, limit=4)
call_late = make_call("call_late", base=Throttled, limit=4, acks_late=True)
# No limit that could hold starts.
call_without = make_call("call_without", base=Throttled, singleton=True)


@app.task(shared=False, bind=True, base=Throttled, limit=Limit("api", 2))
def call_about(self: Any, label: str, limit: str) -> str:
    return _call(self, label, 60, limit)


# Not throttled.
plain = task_maker(app, run_for)("plain")
crowd = task_maker(app, run_held)("crowd", base=Throttled, limit=Limit("crowd", 1, max_parked=2))
