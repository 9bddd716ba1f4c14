"""Throttle every task of a process, and the runner's orders for it, in its environment and its directory."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import celery

__all__ = [
    "CONFIGURATION", "LIMIT", "LOG", "OWN_PROCESS", "REPORTS", "SLOTS", "check_all_throttled", "throttle_every_task",
]  # fmt: skip

LIMIT = "SUITE_LIMIT"  # of all tasks together; empty: nothing is throttled
OWN_PROCESS = "SUITE_OWN_PROCESS"  # whether the worker is a process; empty: it runs in that of the tests
SLOTS = "SUITE_SLOTS"  # of the worker

#: In the directory of a run: the configuration of a worker process, the library's log, and the outcome of each test.
CONFIGURATION, LOG, REPORTS = Path("worker.json"), Path("throttled.log"), Path("reports.jsonl")


def throttle_every_task() -> None:
    """Have one limit for all tasks of all apps, if it is ordered; call it before any app has one."""
    if not os.environ[LIMIT]:
        return
    from celery_throttle import Limit, Throttled  # noqa: PLC0415  # where nothing is throttled, nothing of ours is there

    class EveryTask(Throttled):
        abstract = True

    EveryTask.limit = Limit("suite", int(os.environ[LIMIT]))
    celery.Celery.task_cls = EveryTask  # type: ignore[assignment]  # takes a class, too
    celery.Task = EveryTask  # type: ignore[misc]  # for those that write a class of their own
    handler = logging.FileHandler(LOG)
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(message)s"))
    ours = logging.getLogger("celery_throttle")
    ours.addHandler(handler)
    ours.setLevel(logging.DEBUG)


def check_all_throttled(app: Any) -> None:
    """Fail if a task of the app is not throttled, though it has to be: nothing would be shown by it."""
    if not os.environ[LIMIT]:
        return
    from celery_throttle.tasks.registry import policies_of  # noqa: PLC0415  # as above

    if missed := set(app.tasks) - set(policies_of(app)):
        raise AssertionError(f"not throttled: {', '.join(sorted(missed))}")
