"""Read the time when a change of a limit ends by itself."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from datetime import tzinfo

    from celery_throttle.core.buckets import Bucket

__all__ = ["LONGEST", "Until", "moment_of", "until_text"]

Until = datetime | timedelta | float | None

#: A century, in seconds.
LONGEST = 3.2e9
_LATEST_YEAR = 2200
#: Numbers from this one on are Unix times; as seconds from now they would be 31 years.
_UNIX_TIME = 1e9


def moment_of(until: Any) -> Any:
    """Return a Unix time, such as ``time.time() + 60``, as a datetime, and other values unchanged."""
    is_time = isinstance(until, int | float) and not isinstance(until, bool) and _UNIX_TIME <= until < LONGEST
    return datetime.fromtimestamp(until, timezone.utc) if is_time else until


def until_text(bucket: Bucket, until: Any, zone: tzinfo) -> str:
    """Return a time for control.lua: ``0`` (no end), ``+ms`` from now, or ms.

    Raises:
        ConfigurationError: the value is no such time, or out of range.
    """
    if until is None:
        return "0"
    if isinstance(until, datetime):
        aware = until if until.tzinfo else until.replace(tzinfo=zone)
        if aware.year <= _LATEST_YEAR:
            return f"{max(aware.timestamp(), 0.001) * 1000:.0f}"
    seconds = until.total_seconds() if isinstance(until, timedelta) else until
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds < LONGEST:
        raise ConfigurationError(
            f"Limit {bucket}: until must be a datetime, or seconds or a timedelta from now, more than 0, "
            f"got {until!r}: write until=3600 or until=timedelta(hours=1)"
        )
    return f"+{max(round(seconds * 1000), 1)}"
