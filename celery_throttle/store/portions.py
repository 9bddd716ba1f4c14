"""How many rows one exchange has, so that the server is not kept from its other clients for long."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["MOST_ROWS", "Portion"]

#: Rows of one kind in an exchange; no call has more than 500 rows (ElastiCache Serverless), but for those of
#: ``unacked`` that a worker has without a broker: what is not among them counts as acknowledged.
MOST_ROWS = 50
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
