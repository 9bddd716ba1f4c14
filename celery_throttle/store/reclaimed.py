"""The log line about permits of a lost worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_throttle.core.policy import costs_of, limits_text
from celery_throttle.core.wording import one_line, span

if TYPE_CHECKING:
    from celery_throttle.core.task_codes import TaskNames
    from celery_throttle.store.exchange_reply import Cleared

__all__ = ["reclaimed_text"]


def reclaimed_text(cleared: Cleared, names: TaskNames) -> str:
    """Return a text of the reclaimed permits, their task and their worker, as far as the store has them."""
    buckets = [bucket for bucket, _ in costs_of(cleared.needs)]
    name = names.find(cleared.code, buckets, "")
    task = f"{name}[{cleared.task}]" if name else cleared.task
    permits = f"Permit of limit {limits_text(cleared.needs)}" if buckets else "Identity lock"
    worker = f": worker {cleared.worker} is lost or cut off from the store" if cleared.worker else ""
    ended = "" if cleared.late is None else f", and the lease ended {span(cleared.late)} ago"
    return one_line(f"{permits} reclaimed from task {task}{worker}{ended}")
