"""Limit the rows of one exchange, so that the server stays free for its other clients."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

__all__ = ["MOST_RENEWED", "MOST_ROWS", "Portion", "take_messages", "take_rows"]

T = TypeVar("T")

#: The most rows of one kind in an exchange. No call has more than 500 rows, which is a limit of ElastiCache Serverless.
#: The ``unacked`` rows of a worker without a broker have no limit, because a missing row counts as acknowledged.
MOST_ROWS = 50
#: The most rows of one kind in a renewal, which has two kinds.
MOST_RENEWED = 200
#: The most work of one exchange: 2 units for each row, and 1 for each of its limits. A unit takes about 20 us.
_MOST_WORK = 24


class Portion:
    """The share of the pending rows that fits in one call, the same for each kind of rows.

    Args:
        kinds: for each kind of rows, the needs (text) of the pending rows.
        others: the number of rows of other kinds in the call.
    """

    def __init__(self, *kinds: Iterable[str], others: int = 0) -> None:
        work = sum(_work(needs) for kind in kinds for needs in kind)
        self._part = min(1.0, max(_MOST_WORK - 3 * others, 0) / work) if work else 1.0

    def of(self, rows: Sequence[Any]) -> int:
        """Return how many of these rows the call takes: at least one, so that no kind waits for another."""
        return ceil(min(len(rows), MOST_ROWS) * self._part) or 1


def _work(needs: str) -> int:
    return 3 + needs.count("\1")


def take_rows(rows: list[T], most: int = MOST_ROWS) -> list[T]:
    """Remove and return the first ``most`` rows."""
    taken = rows[:most]
    del rows[:most]
    return taken


def take_messages(rows: list[T], most: int, most_bytes: int, size: Callable[[T], int]) -> list[T]:
    """Remove and return the first ``most`` rows, fewer if their messages exceed ``most_bytes``; at least one."""
    taken, total = 0, 0
    for row in rows[:most]:
        total += size(row)
        if taken and total > most_bytes:
            break
        taken += 1
    return take_rows(rows, taken)
