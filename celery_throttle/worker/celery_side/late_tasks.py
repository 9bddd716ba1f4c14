"""Refuse the throttled tasks that a running worker learns of and cannot throttle: by `pool_restart`, or a late import.

Celery makes the strategies of all tasks at each connection, and after a `pool_restart`. It gives messages to no other
tasks. So `Throttled` asks here for each strategy.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery.worker.strategy import default

from celery_throttle.core.dedup import carried_plan
from celery_throttle.errors import ConfigurationError
from celery_throttle.settings import settings_of
from celery_throttle.tasks.registry import dedup_of, policies_of
from celery_throttle.worker.celery_side.failing import fail_or_reject
from celery_throttle.worker.celery_side.locks_of_messages import free_lock
from celery_throttle.worker.celery_side.stand_in import StandIn
from celery_throttle.worker.celery_side.unthrottled import fail_rate_limited
from celery_throttle.worker.lock_plans import header_of

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["strategy_of_late"]

logger = logging.getLogger(__name__)

#: Seconds until the result backend is tried again.
_PAUSE = 1.0


def strategy_of_late(task: Any, app: Any, consumer: Any) -> Callable[..., Any] | None:
    """Return a strategy that fails each message of a task, None if the worker throttles the task, or need not."""
    try:
        _check(task, app, consumer)
    except ConfigurationError as error:
        logger.error("celery_throttle: the messages of task %s fail here: %s", task.name, error)  # noqa: TRY400
        refusing = _Refusing(consumer.timer, str(error))
        return default(task, app, StandIn(consumer, refusing.fail))
    return None


def _check(task: Any, app: Any, consumer: Any) -> None:
    type(task).on_bound(app)  # a task stays registered if its options were refused when it was declared
    if task.name not in policies_of(app) and dedup_of(task) is None:
        return
    gate = getattr(consumer.controller, "throttling", None)
    if gate is not None:
        gate.check(task)
    elif settings_of(app).enabled:
        raise ConfigurationError(
            f"Task {task.name} was declared while the worker ran, which had no throttled task at its start and cannot "
            f"throttle: restart the worker"
        )
    else:
        fail_rate_limited(task)


class _Refusing:
    """Fails requests, later if the result backend is away; until then the broker keeps their messages."""

    def __init__(self, timer: Any, why: str) -> None:
        self._timer, self._why = timer, why

    def fail(self, request: Any) -> None:
        """Fail a request, and free the lock in its message."""
        try:
            fail_or_reject(request, ConfigurationError(self._why))
        except Exception as error:  # noqa: BLE001 - of any backend
            logger.error("Task %s[%s] fails later: %r", request.name, request.id, error)  # noqa: TRY400
            self._timer.call_after(_PAUSE, self.fail, (request,))
            return
        if (plan := carried_plan(header_of(request), request.id, dedup_of(request.task))) is not None:
            free_lock(request.task.app, plan, request.id)
