"""Durations as people write them in a shell."""

from __future__ import annotations

import re
from datetime import timedelta

from celery_throttle.core.checks import TEN_YEARS
from celery_throttle.errors import ConfigurationError

__all__ = ["duration", "read_duration"]

_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_PART = r"(\d+(?:\.\d+)?)"
_DURATION = re.compile("".join(f"(?:{_PART}{unit})?" for unit in _UNITS))


def read_duration(text: str, option: str = "") -> timedelta:
    """Parse a duration as `duration` does, and refuse a wrong one; ``option`` is for the message: ``"for="``.

    Raises:
        ConfigurationError: the text is no duration, or longer than ten years.
    """
    length = duration(text)
    if length is None:
        raise ConfigurationError(f"{option}{text!r} is no duration: write 90s, 10m, 2h, 1d or 1h30m")
    if length.total_seconds() > TEN_YEARS:
        raise ConfigurationError(f"{option}{text!r} is longer than ten years: leave it out for a change without an end")
    return length


def duration(text: str) -> timedelta | None:
    """Parse ``90s``, ``10m``, ``2h``, ``1d`` or several of them, ``1h30m``; None if the text is no duration above 0."""
    found = _DURATION.fullmatch(text)
    parts = found.groups() if found else ()
    try:
        length = timedelta(**{unit: float(part) for unit, part in zip(_UNITS.values(), parts, strict=False) if part})
    except OverflowError:
        return timedelta.max
    return length or None
