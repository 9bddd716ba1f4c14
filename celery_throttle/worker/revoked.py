"""Which tasks were revoked since the last look at Celery's set of them."""

from __future__ import annotations

from itertools import takewhile
from typing import Any

from celery.worker import state

__all__ = ["Revoked"]


class Revoked:
    """Follows Celery's set, which keeps the newest so many in the order in which they came."""

    def __init__(self) -> None:
        self._last: Any = None

    def new(self) -> list[str]:
        """Return what was added since the last call."""
        # Not by the size: a full set stays as large as it is.
        known = state.revoked._data.values()  # type: ignore[attr-defined]  # noqa: SLF001 - its own iterator sorts the whole set
        added = list(takewhile(lambda entry: entry is not self._last, reversed(known)))
        if added:
            self._last = added[0]
        return [str(task) for *_, task in reversed(added)]
