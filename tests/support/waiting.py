"""Waiting for a condition, instead of sleeping and hoping."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from celery_throttle.errors import StoreUnavailable

T = TypeVar("T")

#: Seconds after which an awaited condition counts as one that never comes. It bounds a hang, and measures nothing: a
#: machine that is five times slower, or busy, has to pass all the same. The leases beside it are longer.
HANGS_AFTER = 240.0


def until(
    condition: Callable[[], T],
    *,
    timeout: float = HANGS_AFTER,
    every: float = 0.02,
    describe: str | Callable[[], object] = "",
) -> T:
    """Return the first true value of ``condition``; fail after ``timeout`` seconds with the text of ``describe``."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            value = condition()
        except StoreUnavailable as error:  # a busy machine: the store did not answer for a second
            value = error  # type: ignore[assignment]
        else:
            if value:
                return value
        if time.monotonic() > deadline:
            detail = describe if isinstance(describe, str) else str(describe())
            raise AssertionError(f"Not so within {timeout:g} s (last value {value!r}). {detail}".rstrip())
        time.sleep(every)


def always(condition: Callable[[], object], *, seconds: float, every: float = 0.02, describe: str = "") -> None:
    """Fail as soon as ``condition`` is false within the next ``seconds``."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        value = condition()
        if not value:
            raise AssertionError(f"Not so any more (value {value!r}). {describe}".rstrip())
        time.sleep(every)
