"""How long something lasts, as people write it in a shell."""

from __future__ import annotations

import re
from datetime import timedelta

from celery_throttle.errors import ConfigurationError

__all__ = ["duration", "read_duration"]

_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_PART = r"(\d+(?:\.\d+)?)"
_DURATION = re.compile("".join(f"(?:{_PART}{unit})?" for unit in _UNITS))


#: What is longer than this lasts for good.
_LONGEST = timedelta(days=36_500)


def read_duration(text: str, option: str = "") -> timedelta:
    """Read what `duration` does.

    Args:
        text: as it was written.
        option: that it was given as: ``"for="``.

    Raises:
        ConfigurationError: it is none, or longer than a century.
    """
    length = duration(text)
    if length is None:
        raise ConfigurationError(f"{option}{text!r} is no duration: write 90s, 10m, 2h, 1d or 1h30m")
    if length > _LONGEST:
        raise ConfigurationError(f"{option}{text!r} is longer than a century: leave it out, and it lasts for good")
    return length


def duration(text: str) -> timedelta | None:
    """Read ``90s``, ``10m``, ``2h``, ``1d`` or several of them, ``1h30m``; None if it is none, or not more than 0."""
    found = _DURATION.fullmatch(text)
    parts = found.groups() if found else ()
    try:
        length = timedelta(**{unit: float(part) for unit, part in zip(_UNITS.values(), parts, strict=False) if part})
    except OverflowError:
        return timedelta.max
    return length or None
