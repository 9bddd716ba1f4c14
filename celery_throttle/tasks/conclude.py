"""The outcome of another task, for the duplicate that ends with it."""

from __future__ import annotations

from typing import Any

from celery import states
from celery.exceptions import TaskRevokedError

__all__ = ["outcome_of"]


def outcome_of(app: Any, first: str) -> Any:
    """Return what a task returned, or raise what it raised; None if its result is not kept."""
    result = app.AsyncResult(first)
    try:
        state, value = result.state, result.result
    except NotImplementedError:  # no result backend
        return None
    if state == states.REVOKED:
        raise TaskRevokedError(f"its first, {first}, was revoked")
    if state in states.EXCEPTION_STATES:
        raise value if isinstance(value, Exception) else RuntimeError(str(value))
    return value if state == states.SUCCESS else None
