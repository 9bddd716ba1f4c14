"""Refuse a call whose limit has ``max_parked`` parked tasks; the worker checks it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_throttle.clients import store_client
from celery_throttle.errors import LimitExceeded, StoreUnavailable
from celery_throttle.settings import throttles
from celery_throttle.tasks.publish import HEADER, is_again, log_unchecked
from celery_throttle.tasks.registry import policies_of

if TYPE_CHECKING:
    from celery_throttle.core.arguments import TaskCall

__all__ = ["check_max_parked"]


def check_max_parked(task: Any, call: TaskCall, options: dict[str, Any]) -> None:
    """Refuse a call if as many tasks are parked as may wait.

    Raises:
        LimitExceeded: a limit of the task is that crowded.
    """
    policy = policies_of(task.app).get(str(task.name))
    if policy is None or not policy.crowds or not throttles(task.app):
        return
    if is_again(options):
        return  # a retry: this check passed before
    carried = (options.get("headers") or {}).get(HEADER)
    values = carried if carried and policy.carried(carried) else policy.values(call)
    client = store_client(task.app, policy.group)
    for bucket, most in policy.most_parked(values):
        try:
            parked = client.ask_if_up(client.store.crowd(bucket.text))
        except StoreUnavailable as error:
            log_unchecked(client, task.name, error)
            return
        if parked >= most:
            raise LimitExceeded(str(task.name), str(bucket), parked, most)
