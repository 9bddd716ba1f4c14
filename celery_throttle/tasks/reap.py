"""Clear expired holders: the body of the beat task.

Workers clear the expired holders that they meet, so limits in use recover without this task. It frees the permits of
limits that are not in use at the moment.
"""

from __future__ import annotations

import logging
from typing import Any

from celery_throttle.clients import store_client
from celery_throttle.core.task_codes import TaskNames, limits_by_task
from celery_throttle.errors import StoreUnavailable
from celery_throttle.settings import settings_of
from celery_throttle.store.reclaimed import reclaimed_text
from celery_throttle.tasks.registry import dedups_of, groups_of, policies_of

__all__ = ["reap_all"]

logger = logging.getLogger(__name__)


def reap_all(app: Any) -> int:
    """Clear the holders whose lease has ended and wake the workers that can use their permits; return how many.

    The cost grows with the number of expired holders, not with the number of all holders.
    """
    settings = settings_of(app)
    if not settings.url:  # throttling is turned off
        return 0
    total = 0
    names = TaskNames(limits_by_task(policies_of(app), dedups_of(app)))
    for group in groups_of(app) or [settings.group]:
        try:
            for each in store_client(app, group).reap():
                logger.warning("%s", reclaimed_text(each, names))
                total += 1
        except StoreUnavailable as error:
            # Beat sends the task again soon, and workers log more about an outage.
            logger.warning("celery_throttle: cannot reach the store, expired permits stay for now: %s", error)
    return total
