"""What a task raises when the outside tells it that it is asked too often."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

from celery.exceptions import Ignore

from celery_throttle.core.asking import plain
from celery_throttle.core.wrong_calls import tells
from celery_throttle.errors import ConfigurationError, ThrottleError

if TYPE_CHECKING:
    from celery_throttle.core.limits import Limit

__all__ = ["RateLimited"]


#: Ten years, in seconds.
_LONGEST = 10 * 365 * 86400


class RateLimited(Ignore, ThrottleError):
    """Raise it in the body of a throttled task, for a 429 of an API, say::

        if answer.status_code == 429:
            raise RateLimited(retry_after=float(answer.headers["Retry-After"]))

    The task goes back to the head of its line, without costing a retry, and its limits (for its key) start nothing
    until then, on any worker. It runs again from its beginning, with the same arguments and the same id.

    To Celery's own code it is an `Ignore`: no failure, no retry, no result. In eager mode, and by ``task.apply()``, it
    is a failure, since there is no line.

    Args:
        retry_after: seconds, or a timedelta.
        limit: the limit that this is about, or its name; by default all limits of the task.

    Raises:
        ConfigurationError: ``retry_after`` or ``limit`` cannot work.
    """

    @tells(
        **dict.fromkeys(("countdown", "seconds", "delay", "timeout", "wait", "after"), "write RateLimited(30)"),
        limits="write limit='api'",
        name="write limit='api'",
    )
    def __init__(self, retry_after: float | timedelta, limit: str | Limit | None = None) -> None:
        seconds: object = retry_after.total_seconds() if isinstance(retry_after, timedelta) else retry_after
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= _LONGEST:
            raise ConfigurationError(
                f"RateLimited: retry_after must be seconds or a timedelta, 0 to {_LONGEST}, got {retry_after!r}: "
                f"write RateLimited(float(answer.headers['Retry-After']))"
            )
        name: object = getattr(limit, "name", limit)
        if name is not None and not isinstance(name, str):
            raise ConfigurationError(
                f"RateLimited: limit must be a Limit or its name, got {limit!r}: write limit='api'"
            )
        super().__init__(seconds, name)
        self.retry_after, self.limit = float(seconds), name

    def __str__(self) -> str:
        return f"asked too often, again in {plain(self.retry_after)} s"
