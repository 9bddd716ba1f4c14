"""Report a success that is to be remembered to the store, from the process that ran the task.

The worker's main process reports the same a moment later. If it is killed in that moment, the broker delivers the
message again, and without this report the task would run again.

A success of the body is final. If the result backend is away when the body ends, Celery would store a failure or
nothing. So here the result is dropped, and the task counts as succeeded.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery.signals import task_success
from kombu.exceptions import EncodeError

from celery_throttle.clients import store_client
from celery_throttle.errors import StoreUnavailable
from celery_throttle.tasks.registry import dedup_of, group_of
from celery_throttle.worker.lock_plans import plan_of

if TYPE_CHECKING:
    from celery_throttle.core.dedup import Dedup

__all__ = ["begin", "end", "lost"]

logger = logging.getLogger(__name__)

#: The mark in the request of a task whose result could not be stored.
_LOST = "throttle_result_lost"


def begin() -> None:
    """Begin to report successes, in this process and its children."""
    task_success.connect(_succeeded, weak=False, dispatch_uid=__name__)


def end() -> None:
    """Stop reporting, in this process."""
    task_success.disconnect(_succeeded, dispatch_uid=__name__)


def lost(task: Any, error: Exception) -> bool:
    """Count a body as succeeded whose result could not be stored; return False if that is not for us.

    If no backend can store the result Celery stores the error instead.
    """
    if isinstance(error, EncodeError) or _remembered(task) is None:
        return False
    setattr(task.request, _LOST, True)
    logger.error(
        "Task %s[%s] has succeeded, but its result is lost, since the result backend is away: %r",
        task.name, task.request.id, error,
    )  # fmt: skip
    return True


def _remembered(task: Any) -> Dedup | None:
    """Return the task's run-once options if it has its lock and its success is to be remembered, else None."""
    dedup = dedup_of(task)
    return dedup if dedup is not None and dedup.remember and task.request.get("fencing_token") is not None else None


def _succeeded(sender: Any = None, **_: Any) -> None:
    dedup = _remembered(sender)
    if dedup is None:
        return
    request = sender.request
    identity, lost = plan_of(request, sender, dedup).identity, bool(request.get(_LOST))
    client = store_client(sender.app, group_of(sender))
    token = request.get("fencing_token")
    try:
        client.ask(client.store.succeeded(identity, request.id, token, dedup.remember, lost=lost))
    except StoreUnavailable as error:
        logger.warning("celery_throttle: cannot report at once that %s is done: %s", request.id, error)
