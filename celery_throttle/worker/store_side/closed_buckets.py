"""The buckets that have no room, or a line, by the last answers of the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_throttle.worker.runs import Run

__all__ = ["ClosedBuckets"]

#: The most buckets that are stored; if they are dropped, the store is only asked again.
_MOST = 10_000


class ClosedBuckets:
    """Buckets in which arrivals have to wait, and whose permits are not passed on here; all on the loop."""

    def __init__(self) -> None:
        self._buckets: set[str] = set()

    def close(self, bucket: str) -> bool:
        """Note that a bucket is closed; return whether it was open before."""
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
        """Return whether the run needs a permit of a closed bucket, or of a site elsewhere."""
        return (bool(self._buckets) or run.needs.elsewhere) and run.needs.waits_in(self._buckets)
