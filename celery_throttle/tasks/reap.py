"""Clear expired holders: what the beat task does.

Workers clear what they meet, so limits recover without it; it is what brings back the permits of a limit that nobody
uses at the moment.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, cast

from redis.exceptions import RedisError

from celery_throttle.core.policy import limits_text
from celery_throttle.settings import settings_of
from celery_throttle.store.calls import Store
from celery_throttle.store.scripts import execute
from celery_throttle.store.servers.client import make_client
from celery_throttle.tasks.registry import groups_of

if TYPE_CHECKING:
    from redis import Redis

__all__ = ["reap_all"]

logger = logging.getLogger(__name__)

_AT_ONCE = 200


def reap_all(app: Any) -> int:
    """Clear the holders whose lease has ended and wake the workers that can use their permits; return how many.

    The cost grows with what has expired, not with what there is.
    """
    settings = settings_of(app)
    if not settings.url:  # throttling is turned off
        return 0
    total = 0
    for group in groups_of(app) or [settings.group]:
        keys = settings.keys(group)
        with make_client(settings.url, keys) as client:
            try:
                total += _reap(client, Store(keys, settings.lease))
            except RedisError as error:
                # It comes again soon, and workers say more of an outage.
                logger.warning("celery_throttle: cannot reach the store, expired permits stay for now: %s", error)
    return total


def _reap(client: Redis, store: Store) -> int:
    total = 0
    while True:
        cleared = cast("list[tuple[bytes, bytes]]", execute(client, store.reap(_AT_ONCE)))
        for task_id, needs in cleared:
            limits = limits_text(needs.decode())
            logger.warning("Permit of limit %r reclaimed from task %s", limits, task_id.decode())
        total += len(cleared)
        if len(cleared) < _AT_ONCE:
            return total
