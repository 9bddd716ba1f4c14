"""Throttle every task of a process: Celery's own, those of the tests, and those that name a base class."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import celery

__all__ = ["PARKED", "check_all_throttled", "throttle_every_task"]

#: The part of a log line for each task that was parked.
PARKED = " parked"


def throttle_every_task(limit: int, log: Path) -> None:
    """Have one limit for all tasks of all apps; call it before any app has one.

    Args:
        limit: how many may run at once, of all tasks together.
        log: where the library's own log is appended.
    """
    from celery_throttle import Limit, Throttled  # noqa: PLC0415  # where nothing is throttled, nothing of ours is there

    class EveryTask(Throttled):
        abstract = True

    EveryTask.limit = Limit("suite", limit)
    celery.Celery.task_cls = EveryTask  # type: ignore[assignment]  # takes a class, too
    celery.Task = EveryTask  # type: ignore[misc]  # for those that write a class of their own
    handler = logging.FileHandler(log)
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(message)s"))
    ours = logging.getLogger("celery_throttle")
    ours.addHandler(handler)
    ours.setLevel(logging.DEBUG)


def check_all_throttled(app: Any) -> None:
    """Fail if a task of the app is not throttled: nothing would be shown by it."""
    from celery_throttle.tasks.registry import policies_of  # noqa: PLC0415  # as above

    if missed := set(app.tasks) - set(policies_of(app)):
        raise AssertionError(f"not throttled: {', '.join(sorted(missed))}")
