"""Read the history of limits."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from celery_throttle.control.reader import portions
from celery_throttle.core.history import MINUTES
from celery_throttle.store.history import histories
from celery_throttle.store.last_hour import last_hours

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_throttle.control.reader import Reader
    from celery_throttle.core.history import Ring
    from celery_throttle.store.history import History
    from celery_throttle.store.last_hour import LastHour
    from celery_throttle.store.limit_status import LimitStatus

__all__ = ["histories_of", "last_hours_of", "with_last_hour"]


def histories_of(reader: Reader, limits: Sequence[str], ring: Ring) -> list[History]:
    """Return the history of each limit."""
    found: list[History] = []
    for some in portions(limits):
        found += reader.read(partial(histories, limits=some, ring=ring), reader.store.history(some, ring))
    return found


def last_hours_of(reader: Reader, limits: Sequence[str]) -> dict[str, LastHour]:
    """Return the starts of the last hour by limit, in short; limits without a start are left out."""
    found: dict[str, LastHour] = {}
    for some in portions(limits):
        found |= reader.read(partial(last_hours, limits=some), reader.store.history(some, MINUTES))
    return found


def with_last_hour(reader: Reader, rows: Sequence[LimitStatus]) -> list[LimitStatus]:
    """Return rows of limits and keys, with the starts of the last hour in the rows of limits."""
    found = last_hours_of(reader, [row.name for row in rows if row.key is None])
    return [replace(row, last_hour=found.get(row.name)) if row.key is None else row for row in rows]
