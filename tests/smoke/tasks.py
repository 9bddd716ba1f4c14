"""The tasks of the smoke tests' workers."""

from __future__ import annotations

import time
from typing import Any

from celery import shared_task

from celery_throttle import Throttled
from tests.support.journal import Journal

_MOST_SECONDS = 60.0


@shared_task(bind=True, base=Throttled, limit=2)
def pair(self: Any, label: str, seconds: float = 0.0) -> str:
    with Journal.from_environment().run(self.request, label):
        time.sleep(seconds)
    return label


@shared_task(bind=True, base=Throttled, limit=1, acks_late=True)
def hold_late(self: Any, label: str) -> str:
    """Runs until the test lets its label go."""
    journal = Journal.from_environment()
    with journal.run(self.request, label):
        journal.wait_let_go(label, _MOST_SECONDS)
    return label
