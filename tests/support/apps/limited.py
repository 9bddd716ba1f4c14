"""Tasks that the outside slows down, and tasks of which only so many may wait."""

from __future__ import annotations

from typing import Any

from celery_throttle import Limit, RateLimited, Throttled
from tests.support.apps import new_app, run_for, run_held
from tests.support.journal import Journal

app = new_app("limited")


def _call(
    task: Any, label: str, retry_after: float | str, limit: str | None = None, max_rounds: int | None = None
) -> str:
    """Get a "slow down" until the test lets it go."""
    journal = Journal.from_environment()
    with journal.run(task.request, label):
        if not journal.is_let_go(label):
            raise RateLimited(retry_after, limit, max_rounds)
    return f"{label} after {task.request.retries}"


@app.task(shared=False, bind=True, base=Throttled, limit=4)
def call(self: Any, label: str, retry_after: float = 0.2) -> str:
    return _call(self, label, retry_after)


@app.task(shared=False, bind=True, base=Throttled, limit=4, acks_late=True)
def call_late(self: Any, label: str, retry_after: float = 0.2) -> str:
    return _call(self, label, retry_after)


@app.task(shared=False, bind=True, base=Throttled, limit=1)
def call_one(self: Any, label: str, retry_after: float = 0.2) -> str:
    return _call(self, label, retry_after)


@app.task(shared=False, bind=True, base=Throttled, limit=4, key="customer")
def call_for(self: Any, label: str, customer: str, retry_after: float = 0.2) -> str:  # noqa: ARG001 - the key
    return _call(self, label, retry_after)


@app.task(shared=False, bind=True, base=Throttled, limit=4, singleton=True)
def call_once(self: Any, label: str, retry_after: float = 0.2) -> str:
    return _call(self, label, retry_after)


@app.task(shared=False, bind=True, base=Throttled, limit=Limit("api", 2))
def call_about(self: Any, label: str, limit: str) -> str:
    return _call(self, label, 60, limit)


@app.task(shared=False, bind=True, base=Throttled, limit=4)
def call_twice_more(self: Any, label: str, retry_after: str = "0.1") -> str:
    """As a Retry-After header has it; and not for ever."""
    return _call(self, label, retry_after, max_rounds=2)


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


@app.task(shared=False)
def collect(labels: list[str]) -> list[str]:
    """The end of a chord."""
    return sorted(labels)


booked = Limit("booked", rate="1/d")


@app.task(shared=False, bind=True, base=Throttled, limit=booked)
def book(self: Any, label: str) -> str:
    return run_for(self, label)
