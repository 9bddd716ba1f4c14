"""A task that waits for the test, and a receiver that writes down which leases are lost."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from celery_throttle import Throttled
from celery_throttle.signals import lease_lost
from tests.support.apps import new_app, run_held, task_maker
from tests.support.journal import Journal

app = new_app("told")
hold = task_maker(app, run_held)("hold", base=Throttled, limit=1)


def _write(sender: str, event: Any, **_: Any) -> None:
    Journal.note("lease_lost", sender=sender, what=asdict(event))


lease_lost.connect(_write, weak=False, dispatch_uid="write")  # once in a process, however often this is imported
