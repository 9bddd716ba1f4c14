"""Starts that are booked in advance."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

__all__ = ["ReservedStart"]


class ReservedStart(datetime):
    """The time (UTC) of a booked start. As the ``eta`` of a task with the same limit, the start is not counted again.

    Attributes:
        bucket: the bucket of the booking; "" for a copy that came through a broker or a pickle.
    """

    bucket = ""

    @classmethod
    def of(cls, us: int, bucket: str) -> ReservedStart:
        """Return the start at a time in microseconds since the epoch."""
        start = cls(1970, 1, 1, tzinfo=timezone.utc)
        start += timedelta(microseconds=us)
        start.bucket = bucket
        return start
