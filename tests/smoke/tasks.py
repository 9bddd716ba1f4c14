"""The tasks of the smoke tests' workers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from celery import shared_task

from celery_throttle import Throttled
from tests.support.journal import Journal

_MOST_SECONDS = 60.0


def _run(task: Any, label: str, seconds: float) -> str:
    with Journal.from_environment().run(task.request, label):
        time.sleep(seconds)
    return label


@shared_task(bind=True, base=Throttled, limit=2)
def pair(self: Any, label: str, seconds: float = 0.0) -> str:
    return _run(self, label, seconds)


@shared_task(bind=True, base=Throttled, limit=1, acks_late=True)
def hold_late(self: Any, label: str) -> str:
    """Runs until the test makes the file of its label."""
    journal = Journal.from_environment()
    with journal.run(self.request, label):
        door = Path(f"{journal.path}.{label}")
        deadline = time.monotonic() + _MOST_SECONDS
        while not door.exists() and time.monotonic() < deadline:
            time.sleep(0.02)
    return label
