"""How many rows one exchange has, so that the server is not kept from its other clients for long."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["MOST_RENEWED", "MOST_ROWS", "Portion", "take_messages", "take_rows"]

T = TypeVar("T")

#: Rows of one kind in an exchange; no call has more than 500 rows (ElastiCache Serverless), but for those of
#: ``unacked`` that a worker has without a broker: what is not among them counts as acknowledged.
MOST_ROWS = 50
#: Rows of one kind in a renewal, which has two kinds.
MOST_RENEWED = 200
#: What one exchange may have the server do: 2 for each row, and 1 for each limit that it is about. Some 20 us each.
_MOST_WORK = 24


class Portion:
    """The part of the rows that wait to be said which fits in one call, the same of each kind.

    Args:
        kinds: of each kind of rows the needs (text) of those that wait.
        others: how many rows of other kinds the call has anyway.
    """

    def __init__(self, *kinds: Iterable[str], others: int = 0) -> None:
        work = sum(_work(needs) for kind in kinds for needs in kind)
        self._part = min(1.0, max(_MOST_WORK - 3 * others, 0) / work) if work else 1.0

    def of(self, rows: Sequence[Any]) -> int:
        """Return how many of these rows the call has: one at least, so that no kind waits for another."""
        return ceil(min(len(rows), MOST_ROWS) * self._part) or 1


def _work(needs: str) -> int:
    return 3 + needs.count("\1")


def take_rows(rows: list[T], most: int = MOST_ROWS) -> list[T]:
    """Take the first rows out, as many as one call may have."""
    taken = rows[:most]
    del rows[:most]
    return taken


def take_messages(rows: list[T], most: int, most_bytes: int, size: Callable[[T], int]) -> list[T]:
    """The same of rows with messages: the first, and more of them while all together have so many bytes at most."""
    taken, total = 0, 0
    for row in rows[:most]:
        total += size(row)
        if taken and total > most_bytes:
            break
        taken += 1
    return take_rows(rows, taken)
