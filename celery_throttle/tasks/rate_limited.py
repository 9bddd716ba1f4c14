"""The exception for a task whose outside service has refused it for now (HTTP 429)."""

from __future__ import annotations

import logging
import random
from datetime import datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any

from celery.exceptions import Ignore

from celery_throttle.core.checks import TEN_YEARS, plain, seconds, whole
from celery_throttle.core.wrong_calls import with_fixes
from celery_throttle.errors import ConfigurationError, ThrottleError

if TYPE_CHECKING:
    from typing_extensions import Self

    from celery_throttle.core.limits import Limit

__all__ = ["RateLimited"]

logger = logging.getLogger(__name__)

#: Seconds if the answer names no time. At random, so that programs which were refused together do not come together.
_DEFAULT = (20.0, 40.0)


class RateLimited(Ignore, ThrottleError):
    """Raised in the body of a throttled task, for a 429 of an API, say::

        if response.status_code == 429:
            raise RateLimited.from_response(response)

    The task goes back to the head of its line, and no retry is counted. Its limits (for its key) start nothing for
    ``retry_after`` seconds, on any worker. The task then runs from its beginning, with the same arguments and id.

    To Celery's own code this is an `Ignore`: no failure, no retry, no result. In eager mode, and by ``task.apply()``,
    it is a failure, because there is no line.

    Args:
        retry_after: seconds, a timedelta, or the text of a ``Retry-After`` header (RFC 9110, section 10.2.3): seconds
            or a date. None, "" and text that is neither: 20 to 40 seconds, at random.
        limit: the limit that is to pause, or its name; by default all limits of the task.
        max_rounds: how often the task may go back in line; one time more is a failure. None: any number of times.

    Raises:
        ConfigurationError: an argument cannot work.
    """

    @with_fixes(
        countdown="write RateLimited(30)",
        max_retries="write max_rounds=10",
        response="write RateLimited.from_response(response)",
    )
    def __init__(
        self,
        retry_after: float | str | timedelta | None = None,
        limit: str | Limit | None = None,
        max_rounds: int | None = None,
    ) -> None:
        wait = _seconds(retry_after, _now())
        name: object = getattr(limit, "name", limit)
        if name is not None and not isinstance(name, str):
            raise ConfigurationError(
                f"RateLimited: limit must be a Limit or its name, got {limit!r}: write limit='api'"
            )
        if max_rounds is not None:
            whole("RateLimited: max_rounds", max_rounds, 0, usual=10)
        super().__init__(wait, name, max_rounds)
        self.retry_after, self.limit, self.max_rounds = wait, name, max_rounds

    @classmethod
    def from_response(cls, response: Any, limit: str | Limit | None = None, max_rounds: int | None = None) -> Self:
        """Return an exception with the ``Retry-After`` of a response of httpx, requests, aiohttp or urllib.

        A date is counted from the response's own ``Date``, if there is one, so the clocks need not agree.

        Raises:
            ConfigurationError: the response has no headers, or an argument cannot work.
        """
        headers: Any = getattr(response, "headers", None)
        if not callable(getattr(headers, "get", None)):
            raise ConfigurationError(
                f"RateLimited: from_response() takes a response with headers, got {response!r}: write RateLimited(30)"
            )
        sent = _date(headers.get("Date"))
        return cls(_seconds(headers.get("Retry-After"), sent or _now()), limit, max_rounds)

    def __str__(self) -> str:
        return f"asked too often, again in {plain(round(self.retry_after, 3))} s"


def _seconds(given: object, now: datetime) -> float:
    """Return the seconds from now of a number, a timedelta or the text of a header.

    Raises:
        ConfigurationError: the value is no time to wait.
    """
    if isinstance(given, str) or given is None:
        return _of_header(given, now)
    return seconds("RateLimited: retry_after", given)


def _of_header(text: str | None, now: datetime) -> float:
    """Return the seconds of a header; a server's text never raises, because it is no mistake of the task."""
    if text and text.strip():
        try:
            wait = float(text)
        except ValueError:
            date = _date(text)
            wait = (date - now).total_seconds() if date else float("nan")
        if wait == wait:  # noqa: PLR0124 - "nan" is a number to Python
            return min(max(wait, 0.0), TEN_YEARS)
        logger.warning("RateLimited: Retry-After %.100r is no number of seconds and no date: waiting about 30 s", text)
    return random.uniform(*_DEFAULT)  # noqa: S311 - no secret


def _date(text: object) -> datetime | None:
    if not isinstance(text, str):
        return None
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError, OverflowError):
        return None
    return date if date.tzinfo else date.replace(tzinfo=timezone.utc)


def _now() -> datetime:
    return datetime.now(timezone.utc)
