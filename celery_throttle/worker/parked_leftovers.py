"""Find tasks that were parked before throttling was turned off."""

from __future__ import annotations

import logging
from typing import Any

from celery_throttle.clients import store_client
from celery_throttle.errors import StoreUnavailable
from celery_throttle.settings import settings_of
from celery_throttle.store.parked_tasks import read_parked_ids
from celery_throttle.store.reading import read
from celery_throttle.tasks.registry import groups_of

__all__ = ["parked_tasks_left"]

logger = logging.getLogger(__name__)

#: The number of ids that one call reads, and the number of calls for one group.
_IDS, _CALLS = 100, 100


def parked_tasks_left(app: Any) -> bool:
    """Return whether tasks are parked while ``throttle_enabled`` is False; log their number and the fix."""
    if not settings_of(app).url:
        return False
    try:
        left = {group: _parked(app, group) for group in groups_of(app)}
    except StoreUnavailable as error:
        logger.warning(
            "celery_throttle: throttle_enabled is False, and whether tasks are still parked cannot be seen (%s): "
            "they stay parked until a worker is started while the store is there",
            error,
        )
        return False
    for group, (count, more) in left.items():
        if count or more:
            logger.warning(
                "celery_throttle: throttle_enabled is False, and %s parked%s: this worker starts such tasks under "
                "their limits, and all others at once; ThrottleControl(app).limit(...).disable() lifts a limit for "
                "them, too",
                f"{count} or more tasks are" if more else "1 task is" if count == 1 else f"{count} tasks are",
                f" in group {group!r}" if group else "",
            )
    return any(count or more for count, more in left.values())


def _parked(app: Any, group: str) -> tuple[int, bool]:
    """Return how many tasks are parked in a group, and whether there may be more."""
    client = store_client(app, group)
    count, after = 0, ""
    for _ in range(_CALLS):
        after, page = read(read_parked_ids, client.ask(client.store.parked_ids("", after, _IDS)))
        count += len(page)
        if not after:
            break
    return count, bool(after)
