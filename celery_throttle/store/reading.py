"""Read names and times of the store, also where something else than a worker has written them."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, TypeVar

from celery_throttle.core.policy import costs_of
from celery_throttle.core.task_codes import TaskNames
from celery_throttle.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = [
    "NO_NAMES",
    "UNREADABLE",
    "UnreadableReply",
    "came",
    "came_from_text",
    "name_of",
    "read",
    "readable",
    "text",
    "ticket_time",
    "when",
]

T = TypeVar("T")

#: What reading a stored value may raise that something else has written.
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
NO_NAMES = TaskNames({})
#: A ticket is when a task came, in tenths of ms; of one that goes before all others it is less by this (facts.lua).
_TICKETS, _BEFORE_ALL = 10_000, 10**14
#: What makes the text of a ticket sort as its number (records.lua).
_NOUGHT = 10**15
#: As far as times can be shown.
_LAST_MS = 253_370_764_800_000


class UnreadableReply(StoreUnavailable):
    """A reply of the store cannot be read: it counts as lost on the way."""


def read(reader: Callable[[Any], T], raw: Any) -> T:
    """Return what a reader makes of a reply.

    Raises:
        UnreadableReply: it can make nothing of it.
    """
    try:
        return reader(raw)
    except Exception as error:
        raise UnreadableReply(f"a reply of the store cannot be read: {type(error).__name__}: {error}") from error


def readable(make: Callable[[Any], T], rows: Iterable[Any]) -> Iterator[T]:
    """Yield what is made of those rows that can be read."""
    for row in rows:
        try:
            yield make(row)
        except UNREADABLE:
            continue


def text(raw: bytes) -> str:
    """Return a stored name, also one that no worker has written."""
    return raw.decode(errors="replace")


def when(milliseconds: float) -> datetime:
    """Return a time of the store's clock."""
    return datetime.fromtimestamp(min(max(milliseconds, 0), _LAST_MS) / 1000, timezone.utc)


def ticket_time(ticket: float) -> float:
    """Return when a task came, in seconds of the store's clock."""
    return (ticket + _BEFORE_ALL if ticket < 0 else ticket) / _TICKETS


def came(ticket: Any) -> datetime | None:
    """Return when a task came, from its ticket; None if that is not readable."""
    try:
        return datetime.fromtimestamp(ticket_time(ticket), timezone.utc)
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def came_from_text(ticket: bytes | str) -> datetime | None:
    """Do the same for a ticket that is written so that texts sort as numbers."""
    return came(int(ticket) - _NOUGHT)


def name_of(record: Any, names: TaskNames) -> str | None:
    """Return the name of a record's task, if it is among those that are known."""
    buckets = [bucket for bucket, _ in costs_of(record.get("needs", ""))]
    return names.find(record.get("code", ""), buckets, record.get("queue", ""))
