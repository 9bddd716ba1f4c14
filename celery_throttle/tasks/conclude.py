"""End a duplicate with the outcome of its first task."""

from __future__ import annotations

import time
from typing import Any

from celery import states
from celery.backends.base import DisabledBackend
from celery.exceptions import Reject, TaskRevokedError

from celery_throttle.errors import ResultLost
from celery_throttle.tasks.result_backends import answers_caller_only, cannot_read

__all__ = ["conclude_as"]

#: Seconds until a result is read again after the result backend was away.
_PAUSE = 1.0


def conclude_as(duplicate: Any, first: str, name: str, *, lost: bool = False) -> Any:
    """Return what the first task returned, or raise what it raised; None if its result is not kept.

    Args:
        duplicate: the task object of this library that the duplicate runs as.
        first: the id of the first task.
        name: the name of both tasks.
        lost: whether the first has succeeded, and its result could not be kept.

    Raises:
        ConfigurationError: the first has a result, and its backend returns the result to its caller alone.
        ResultLost: the first has succeeded, and its result could not be kept.
        Reject: the result backend is away.
    """
    task = duplicate.app.tasks.get(name, duplicate)
    try:
        outcome = _outcome_of(duplicate, task, first, lost=lost)
    except Reject:
        raise
    except Exception as error:
        _keep(duplicate, task, error, states.FAILURE)
        raise
    _keep(duplicate, task, outcome, states.SUCCESS)
    return outcome


def _outcome_of(duplicate: Any, task: Any, first: str, *, lost: bool) -> Any:
    if answers_caller_only(task.backend) and not _ignored(duplicate, task):
        raise cannot_read(task.name, f"to end as its first, {first},")
    state, value = _read(task, first)
    if lost and state != states.SUCCESS:
        raise ResultLost(task.name, first)
    if state == states.REVOKED:
        raise TaskRevokedError(f"its first, {first}, was revoked")
    if state in states.EXCEPTION_STATES:
        raise value if isinstance(value, Exception) else RuntimeError(str(value))
    return value if state == states.SUCCESS else None


def _read(task: Any, first: str) -> tuple[str, Any]:
    backend = task.backend
    if isinstance(backend, DisabledBackend):  # to read its data raises `AttributeError`
        return states.SUCCESS, None
    # By no `AsyncResult`: it unsubscribes when it is collected, maybe while another one does, which waits for ever.
    try:
        found = backend.get_task_meta(first)
        if found["status"] in states.READY_STATES:
            found = backend.meta_from_decoded(found)
        return found["status"], found["result"]
    except NotImplementedError:  # a result backend that keeps nothing
        return states.SUCCESS, None
    except Exception as error:
        if not _is_away(backend, error):
            raise
        # The duplicate's own result could not be stored now either, so the duplicate goes back in line.
        time.sleep(_PAUSE)
        raise Reject(error, requeue=True) from error


def _is_away(backend: Any, error: Exception) -> bool:
    lost = (OSError, *getattr(backend, "connection_errors", ()))
    return isinstance(error, lost) or bool(backend.exception_safe_to_retry(error))


def _keep(duplicate: Any, task: Any, outcome: Any, state: str) -> None:
    # The task's callers read its own backend; Celery writes the outcome to the backend of the task that runs here.
    request = duplicate.request
    if task.backend is not duplicate.backend and not _ignored(duplicate, task):
        task.backend.store_result(request.id, outcome, state, request=request)


def _ignored(duplicate: Any, task: Any) -> bool:
    return bool(duplicate.request.ignore_result or task.ignore_result)
