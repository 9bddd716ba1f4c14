"""Read names and times of the store, also those that other programs than workers have written."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from celery_throttle.core.policy import costs_of
from celery_throttle.core.task_codes import TaskNames
from celery_throttle.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = [
    "NO_NAMES",
    "UNREADABLE",
    "UnreadableReply",
    "WaitEnd",
    "came",
    "came_from_text",
    "name_of",
    "read",
    "readable",
    "text",
    "ticket_time",
    "wait_end",
    "when",
]

T = TypeVar("T")
#: What ends the wait of a task: an option of the task, or one of its call.
WaitEnd = Literal["start_deadline", "expires"]

#: The errors of reading a stored value that another program has written.
UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
NO_NAMES = TaskNames({})
#: A ticket is the arrival time of a task, in tenths of ms; less _BEFORE_ALL for a task that goes first (facts.lua).
_TICKETS, _BEFORE_ALL = 10_000, 10**14
#: The sum of a ticket and this number has a text that sorts as the number (records.lua).
_NOUGHT = 10**15
#: The latest time that can be shown.
_LAST_MS = 253_370_764_800_000


class UnreadableReply(StoreUnavailable):
    """A reply of the store is unreadable: it counts as lost on the way."""


def read(reader: Callable[[Any], T], raw: Any) -> T:
    """Return the value that a reader makes of a reply.

    Raises:
        UnreadableReply: the reader failed.
    """
    try:
        return reader(raw)
    except Exception as error:
        raise UnreadableReply(f"a reply of the store cannot be read: {type(error).__name__}: {error}") from error


def readable(make: Callable[[Any], T], rows: Iterable[Any]) -> Iterator[T]:
    """Yield the value of each readable row."""
    for row in rows:
        try:
            yield make(row)
        except UNREADABLE:
            continue


def text(raw: bytes) -> str:
    """Return a stored name as text; bytes that are not UTF-8 are replaced."""
    return raw.decode(errors="replace")


def when(milliseconds: float) -> datetime:
    """Return a time of the store's clock."""
    return datetime.fromtimestamp(min(max(milliseconds, 0), _LAST_MS) / 1000, timezone.utc)


def ticket_time(ticket: float) -> float:
    """Return the arrival time of a task from its ticket, in seconds of the store's clock."""
    return (ticket + _BEFORE_ALL if ticket < 0 else ticket) / _TICKETS


def came(ticket: Any) -> datetime | None:
    """Return the arrival time of a task from its ticket; None if the ticket is unreadable."""
    try:
        return datetime.fromtimestamp(ticket_time(ticket), timezone.utc)
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def came_from_text(ticket: bytes | str) -> datetime | None:
    """Return the arrival time of a task from the sortable text of its ticket."""
    return came(int(ticket) - _NOUGHT)


def wait_end(record: dict[str, Any]) -> tuple[WaitEnd, datetime] | None:
    """Return what ends the wait of a task first, and the time; None if its record has nothing like that."""
    deadline = None if "outside" in record else record.get("deadline")  # outside of tasks it is a lease
    given: tuple[tuple[Any, WaitEnd], ...] = ((deadline, "start_deadline"), (record.get("expires"), "expires"))
    ends = [each for each in given if isinstance(each[0], (int, float))]
    if not ends:
        return None
    end, name = min(ends)
    return name, when(end)


def name_of(record: Any, names: TaskNames) -> str | None:
    """Return the name of a record's task; None if the task is not among ``names``."""
    buckets = [bucket for bucket, _ in costs_of(record.get("needs", ""))]
    return names.find(record.get("code", ""), buckets, record.get("queue", ""))
