"""The buckets that have no room, or a line, as far as a worker knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_throttle.worker.runs import Run

__all__ = ["ClosedBuckets"]

#: The number that is remembered; to forget them only means to ask the store again.
_MOST = 10_000


class ClosedBuckets:
    """Buckets in which arrivals have to wait, and whose permits are not passed on here; all on the loop."""

    def __init__(self) -> None:
        self._buckets: set[str] = set()

    def close(self, bucket: str) -> bool:
        """Note that a bucket is closed; return whether that is new."""
        if bucket in self._buckets:
            return False
        if len(self._buckets) >= _MOST:
            self._buckets.clear()
        self._buckets.add(bucket)
        return True

    def open(self, buckets: Iterable[str]) -> None:
        """Note that buckets have room, and no line."""
        self._buckets.difference_update(buckets)

    def keep_waiting(self, run: Run) -> bool:
        """Return whether the run needs a permit of one of them."""
        return bool(self._buckets) and run.needs.waits_in(self._buckets)
