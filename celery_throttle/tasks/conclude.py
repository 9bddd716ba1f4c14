"""The outcome of another task, for the duplicate that ends with it."""

from __future__ import annotations

from typing import Any

from celery import states
from celery.exceptions import TaskRevokedError

from celery_throttle.tasks.result_backends import answers_caller_only, cannot_read

__all__ = ["conclude_as"]


def conclude_as(duplicate: Any, first: str, name: str) -> Any:
    """Return what the first task returned, or raise what it raised; None if its result is not kept.

    Args:
        duplicate: what the duplicate runs as.
        first: the id of the first task.
        name: of both.

    Raises:
        ConfigurationError: the first has a result, and its backend gives it to its caller alone.
    """
    task = duplicate.app.tasks.get(name, duplicate)
    try:
        outcome = _outcome_of(duplicate, task, first)
    except Exception as error:
        _keep(duplicate, task, error, states.FAILURE)
        raise
    _keep(duplicate, task, outcome, states.SUCCESS)
    return outcome


def _outcome_of(duplicate: Any, task: Any, first: str) -> Any:
    if answers_caller_only(task.backend) and not _ignored(duplicate, task):
        raise cannot_read(task.name, f"to end as its first, {first},")
    result = task.AsyncResult(first)
    try:
        state, value = result.state, result.result
    except NotImplementedError:  # no result backend
        return None
    if state == states.REVOKED:
        raise TaskRevokedError(f"its first, {first}, was revoked")
    if state in states.EXCEPTION_STATES:
        raise value if isinstance(value, Exception) else RuntimeError(str(value))
    return value if state == states.SUCCESS else None


def _keep(duplicate: Any, task: Any, outcome: Any, state: str) -> None:
    # A task may have a backend of its own, where its callers look; Celery writes to that of what runs here, the app's.
    request = duplicate.request
    if task.backend is not duplicate.backend and not _ignored(duplicate, task):
        task.backend.store_result(request.id, outcome, state, request=request)


def _ignored(duplicate: Any, task: Any) -> bool:
    return bool(duplicate.request.ignore_result or task.ignore_result)
