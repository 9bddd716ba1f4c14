"""Tasks that block the main process of their worker until the test opens their door, as CPU work or a C call does.

The first run of a label waits for the door ``<label>.1``, the second for ``<label>.2``, and so on.
"""

from __future__ import annotations

import ctypes
import os
from fcntl import LOCK_EX
from pathlib import Path
from typing import Any

from celery_throttle import Limit, Throttled
from tests.support.apps import new_app
from tests.support.journal import Journal

app = new_app("blocking")

SINGLE = Limit("single", 1)
_KEEPS_THE_GIL = ctypes.PyDLL(None)


def _block(task: Any, label: str, how: str) -> str:
    journal = Journal.from_environment()
    with journal.run(task.request, label):
        number = len(journal.runs(label))
        door = journal.path.with_name(f"door.{label}.{number}")
        if how == "python":
            _compute(door)
        elif how == "c":
            _call(door)
    return f"{label} {number}"


def _compute(door: Path) -> None:
    """Give way to no other greenlet."""
    while os.path.exists(door):  # noqa: PTH110 - what it does counts, not what is found
        sum(range(1000))


def _call(door: Path) -> None:
    """Give way to no other thread: one call of C that keeps the GIL until the test has given up its lock."""
    if door.exists():
        descriptor = os.open(door, os.O_RDWR)
        _KEEPS_THE_GIL.flock(descriptor, LOCK_EX)
        os.close(descriptor)


@app.task(shared=False, bind=True, base=Throttled, limit=SINGLE)
def early(self: Any, label: str, how: str = "") -> str:
    return _block(self, label, how)


@app.task(shared=False, bind=True, base=Throttled, limit=SINGLE, acks_late=True)
def late(self: Any, label: str, how: str = "") -> str:
    return _block(self, label, how)


@app.task(shared=False, bind=True, base=Throttled, limit=SINGLE, singleton=True, remember=600, acks_late=True)
def order(self: Any, label: str, how: str = "") -> str:
    return _block(self, label, how)
