"""Repair the data of the store."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from celery_throttle.store.unreadable import read_wrong

if TYPE_CHECKING:
    from celery_throttle.control.reader import Reader
    from celery_throttle.store.unreadable import Wrong

__all__ = ["mend"]

#: The keys to repair, in this order: indexes after their sources, the found defects (``aside``) last.
_MENDED = (
    *("limits", "overrides", "workers", "records", "locks", "rates", "turns", "lanes"),
    *("lines", "oldest", "used", "waiting", "sums", "meta", "audit", "aside"),
)


def mend(reader: Reader, *, dry_run: bool) -> list[Wrong]:
    """Drop or set aside unreadable fields, and correct those that contradict the records; return these fields."""
    found: dict[Wrong, None] = {}
    for key in _MENDED:
        for page in reader.paged(read_wrong, partial(reader.store.mend, key, mends=not dry_run)):
            found.update(dict.fromkeys(page))
    return list(found)
