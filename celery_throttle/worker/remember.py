"""Tell the store of a success that is to be remembered from the process that ran the task.

The worker's main process says the same a moment later. If it is killed in that moment, the broker delivers the message
again, and without this the task would run again.
"""

from __future__ import annotations

import logging
from typing import Any

from celery.signals import task_success

from celery_throttle.clients import store_client
from celery_throttle.errors import StoreUnavailable
from celery_throttle.tasks.registry import dedup_of, group_of
from celery_throttle.worker.plans import plan_of

__all__ = ["begin", "end"]

logger = logging.getLogger(__name__)


def begin() -> None:
    """From now on, in this process and its children."""
    task_success.connect(_succeeded, weak=False, dispatch_uid=__name__)


def end() -> None:
    """No more, in this process."""
    task_success.disconnect(_succeeded, dispatch_uid=__name__)


def _succeeded(sender: Any = None, **_: Any) -> None:
    dedup = dedup_of(sender)
    if dedup is None or not dedup.remember:
        return
    token = sender.request.get("fencing_token")
    if token is None:
        return
    identity = plan_of(sender.request, sender, dedup).identity
    client = store_client(sender.app, group_of(sender))
    try:
        client.ask(client.store.succeeded(identity, sender.request.id, token, dedup.remember))
    except StoreUnavailable as error:
        logger.warning("celery_throttle: cannot say at once that %s is done: %s", sender.request.id, error)
