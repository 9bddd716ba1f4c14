"""The task that a duplicate runs as: it has the outcome of the first one, and everything that waits for it goes on."""

from __future__ import annotations

from typing import Any

from celery import shared_task, states
from celery.exceptions import TaskRevokedError

__all__ = ["CONCLUDE", "conclude"]

CONCLUDE = "celery_throttle.tasks.conclude"


# Late acknowledgement: the store keeps the duplicate's message until its canvas has gone on. An error is the first
# one's, and was logged there.
@shared_task(name=CONCLUDE, bind=True, acks_late=True, throws=(Exception,))
def conclude(self: Any, first: str) -> Any:
    """Return what the first task returned, or raise what it raised; None if its result is not kept."""
    result = self.app.AsyncResult(first)
    try:
        state, value = result.state, result.result
    except NotImplementedError:  # no result backend
        return None
    if state == states.REVOKED:
        raise TaskRevokedError(f"its first, {first}, was revoked")
    if state in states.EXCEPTION_STATES:
        raise value if isinstance(value, Exception) else RuntimeError(str(value))
    return value if state == states.SUCCESS else None
