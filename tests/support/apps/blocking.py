"""Tasks that block the main process of their worker until the test opens their door, as a C call does.

The first run of a label waits for the door ``<label>.1``, the second for ``<label>.2``, and so on, if it is shut.
"""

from __future__ import annotations

import ctypes
import os
from fcntl import LOCK_EX
from typing import Any

from celery_throttle import Limit, Throttled
from tests.support.apps import new_app, task_maker
from tests.support.journal import Journal

app = new_app("blocking")

SINGLE = Limit("single", 1)
_KEEPS_THE_GIL = ctypes.PyDLL(None)


def _block(task: Any, label: str) -> str:
    """Give way to no other thread or greenlet: one call of C keeps the GIL until the test has given up its lock."""
    journal = Journal.from_environment()
    with journal.run(task.request, label):
        number = len(journal.runs(label))
        door = journal.path.with_name(f"door.{label}.{number}")
        if door.exists():
            descriptor = os.open(door, os.O_RDWR)
            _KEEPS_THE_GIL.flock(descriptor, LOCK_EX)
            os.close(descriptor)
    return f"{label} {number}"


make = task_maker(app, _block)
early = make("early", base=Throttled, limit=SINGLE)
late = make("late", base=Throttled, limit=SINGLE, acks_late=True)
order = make("order", base=Throttled, limit=SINGLE, singleton=True, remember=600, acks_late=True)
