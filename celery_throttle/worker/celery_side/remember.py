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
from celery_throttle.core.dedup import carried_plan
from celery_throttle.errors import StoreUnavailable
from celery_throttle.tasks.registry import dedup_of, group_of
from celery_throttle.worker.celery_side.in_process import SharedByWorkers
from celery_throttle.worker.lock_plans import header_of

if TYPE_CHECKING:
    from celery_throttle.core.dedup import LockPlan

__all__ = ["lost", "reports"]

logger = logging.getLogger(__name__)

#: The mark in the request of a task whose result could not be stored.
_LOST = "throttle_result_lost"


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


def _remembered(task: Any) -> LockPlan | None:
    """Return the lock plan of a task that has its lock, if its success is to be remembered, else None."""
    request = task.request
    if request.get("fencing_token") is None:
        return None
    plan = carried_plan(header_of(request), request.id, dedup_of(task))  # the gate has written it
    return plan if plan is not None and plan.dedup.remember else None


def _succeeded(sender: Any = None, **_: Any) -> None:
    plan = _remembered(sender)
    if plan is None:
        return
    request = sender.request
    client = store_client(sender.app, group_of(sender) if plan.group is None else plan.group)
    token, lost = request.get("fencing_token"), bool(request.get(_LOST))
    try:
        client.ask(client.store.succeeded(plan.identity, request.id, token, plan.dedup.remember, lost=lost))
    except StoreUnavailable as error:
        logger.warning("celery_throttle: cannot report at once that %s is done: %s", request.id, error)


#: Reports successes in a process with workers, and in its children.
reports = SharedByWorkers(
    lambda: task_success.connect(_succeeded, weak=False, dispatch_uid=__name__),
    lambda: task_success.disconnect(_succeeded, dispatch_uid=__name__),
)
