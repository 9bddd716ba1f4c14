"""A start that was booked in advance."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

__all__ = ["ReservedStart"]

_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class ReservedStart(datetime):
    """When it is (UTC); as the ``eta`` of a task with that limit it is not counted again.

    Attributes:
        bucket: the limit it was booked of, with its key; "" for a copy that came through a broker or a pickle.
    """

    bucket = ""

    @classmethod
    def of(cls, us: int, bucket: str) -> ReservedStart:
        """Return the start that many microseconds after the epoch."""
        at = _EPOCH + timedelta(microseconds=us)
        clock = (at.hour, at.minute, at.second, at.microsecond)
        start = cls(at.year, at.month, at.day, *clock, tzinfo=timezone.utc)
        start.bucket = bucket
        return start
