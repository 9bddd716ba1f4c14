"""Starts that are booked in advance."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class ReservedStart(datetime):
    """The time (UTC) of a booked start. As the ``eta`` of a task with the same limit, the start is not counted again.

    Attributes:
        bucket: the bucket of the booking; "" for a copy that came through a broker or a pickle.
    """

    bucket = ""

    @classmethod
    def of(cls, us: int, bucket: str) -> ReservedStart:
        """Return the start at a time in microseconds since the epoch."""
        at = _EPOCH + timedelta(microseconds=us)
        clock = (at.hour, at.minute, at.second, at.microsecond)
        start = cls(at.year, at.month, at.day, *clock, tzinfo=timezone.utc)
        start.bucket = bucket
        return start
