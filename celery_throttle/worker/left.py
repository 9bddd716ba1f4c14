"""Tasks that were parked before throttling was turned off."""

from __future__ import annotations

import logging
from typing import Any

from celery_throttle.control.reader import MOST, Reader
from celery_throttle.errors import StoreUnavailable
from celery_throttle.settings import settings_of
from celery_throttle.tasks.registry import groups_of

__all__ = ["anybody_left"]

logger = logging.getLogger(__name__)


def anybody_left(app: Any) -> bool:
    """Whether tasks are parked, while ``throttle_enabled`` is False; says how many, and what helps."""
    if not settings_of(app).url:
        return False
    try:
        left = {group: len(Reader(app, group).parked(None, MOST)) for group in groups_of(app)}
    except StoreUnavailable as error:
        logger.warning(
            "celery_throttle: throttle_enabled is False, and whether tasks are still parked cannot be seen (%s): "
            "they stay parked until a worker is started while the store is there",
            error,
        )
        return False
    for group, count in left.items():
        if count:
            logger.warning(
                "celery_throttle: throttle_enabled is False, and %s tasks are parked%s: this worker starts them under "
                "their limits, and all others at once; ThrottleControl(app).limit(...).disable() lifts a limit for "
                "them, too",
                f"{count} or more" if count >= MOST else count,
                f" in group {group!r}" if group else "",
            )
    return any(left.values())
