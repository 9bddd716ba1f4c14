"""One `Outside` for each group of an app's store: the permits that this process holds and waits for."""

from __future__ import annotations

import atexit
import os
import time
from typing import Any
from weakref import WeakKeyDictionary

from celery_throttle.permits.outside import Outside

__all__ = ["forget_outside", "outside_of"]

#: Seconds that a program waits at its end until the store has the permits back, and seconds between two looks.
_AT_EXIT, _LOOK_EVERY = 3.0, 0.005

_all: WeakKeyDictionary[Any, dict[str | None, Outside]] = WeakKeyDictionary()


def outside_of(app: Any, group: str | None) -> Outside:
    """Return this process's `Outside` for a group of an app's store; a forked process gets its own."""
    groups = _all.setdefault(app, {})
    if group not in groups or groups[group].process != os.getpid():
        groups[group] = Outside(app, group)
    return groups[group]


def forget_outside(app: Any) -> None:
    """Give back the permits that this process holds in an app's store, because a test gives it another store."""
    for each in _all.pop(app, {}).values():
        each.end()


@atexit.register
def _end_all() -> None:
    """Give back the permits of a program that ends normally; those of a killed one are reclaimed after their lease."""
    ends = [each for groups in _all.values() for each in groups.values() if each.process == os.getpid()]
    for each in ends:
        each.end()
    till = time.monotonic() + _AT_EXIT
    while time.monotonic() < till and not all(each.is_idle for each in ends):
        time.sleep(_LOOK_EVERY)
