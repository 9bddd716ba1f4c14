"""Clear expired holders: the body of the beat task.

Workers clear the expired holders that they meet, so limits in use recover without this task. It frees the permits of
limits that are not in use at the moment.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from celery_throttle.clients import store_client
from celery_throttle.errors import StoreUnavailable
from celery_throttle.settings import settings_of
from celery_throttle.store.reclaimed import reclaimed_text
from celery_throttle.tasks.registry import groups_of, task_names_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_throttle.clients import StoreClient
    from celery_throttle.store.exchange_reply import Cleared

__all__ = ["reap_all", "report_reclaimed"]

logger = logging.getLogger(__name__)


def reap_all(app: Any) -> int:
    """Clear the holders whose lease has ended and wake the workers that can use their permits; return how many.

    The cost grows with the number of expired holders, not with the number of all holders.
    """
    settings = settings_of(app)
    if not settings.url:  # throttling is turned off
        return 0
    total = 0
    names = task_names_of(app)
    for group in groups_of(app) or [settings.group]:
        try:
            for each in store_client(app, group).reap():
                logger.warning("%s", reclaimed_text(each, names))
                total += 1
        except StoreUnavailable as error:
            # Beat sends the task again soon, and workers log more about an outage.
            logger.warning("celery_throttle: cannot reach the store, expired permits stay for now: %s", error)
    return total


def report_reclaimed(app: Any, client: StoreClient, found: Sequence[Cleared]) -> None:
    """Log, count and signal the permits that a call of this process has reclaimed."""
    for each in found:
        logger.warning("%s", reclaimed_text(each, task_names_of(app)))
    client.report_reclaimed(found)
