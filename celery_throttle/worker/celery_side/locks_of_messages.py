"""Free the identity locks in messages whose tasks do not run once here: the code or the settings are others."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from celery.signals import task_received, task_rejected, task_revoked, task_unknown

from celery_throttle.clients import store_client
from celery_throttle.core.contents import stored_id
from celery_throttle.core.dedup import carried_plan
from celery_throttle.errors import ConfigurationError, StoreUnavailable
from celery_throttle.settings import settings_of
from celery_throttle.tasks.publish import HEADER
from celery_throttle.worker.lock_plans import header_of

if TYPE_CHECKING:
    from celery_throttle.core.dedup import LockPlan

__all__ = ["free_lock", "free_locks", "lock_in"]

logger = logging.getLogger(__name__)

#: Each group has a client with connections, and a message may name any group.
_MOST_GROUPS = 100
_GROUPS: WeakKeyDictionary[Any, set[str | None]] = WeakKeyDictionary()
_FREED: WeakSet[Any] = WeakSet()  # apps whose messages are looked at, by a worker of this process


def lock_in(message: Any) -> tuple[LockPlan, object] | None:
    """Return the lock plan in a message that no request was made of, and its task id; None if it has no plan."""
    headers = message.headers or {}
    header = headers.get(HEADER)
    plan = carried_plan(header, headers.get("id")) if isinstance(header, dict) else None
    return None if plan is None else (plan, headers.get("id"))


def free_lock(app: Any, plan: LockPlan, task_id: object) -> None:
    """Free the lock of a task without a gate, if the store is there; else the lock ends by its ``lock_ttl``."""
    groups = _GROUPS.setdefault(app, set())
    if len(groups) >= _MOST_GROUPS and plan.group not in groups:
        return
    groups.add(plan.group)
    client = None
    try:
        client = store_client(app, plan.group)
        client.ask_if_up(client.store.give_up(plan.identity, stored_id(task_id), plan.first))
    except StoreUnavailable as error:
        if client is None or client.breaker.to_be_logged():
            logger.warning(
                "celery_throttle: the identity lock of task %s, and those of others, stay until their lock_ttl: %s",
                task_id, error,
            )  # fmt: skip


def free_locks(app: Any) -> None:
    """Free the lock in each message that a worker without a gate receives from now on, if a store is known."""
    try:
        if not settings_of(app).url or app in _FREED:
            return
    except ConfigurationError:  # without a task to throttle, no setting has to be right
        return
    _FREED.add(app)

    def of_request(sender: Any = None, request: Any = None, **_: Any) -> None:
        plan = carried_plan(header_of(request), request.id) if sender.app is app else None
        if plan is not None:
            free_lock(app, plan, request.id)

    def of_message(sender: Any = None, message: Any = None, **_: Any) -> None:
        found = lock_in(message) if sender.app is app else None
        if found is not None:
            free_lock(app, *found)

    task_received.connect(of_request, weak=False)
    task_revoked.connect(of_request, weak=False)  # a message that comes too late is not received
    task_unknown.connect(of_message, weak=False)
    task_rejected.connect(of_message, weak=False)
