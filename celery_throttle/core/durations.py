"""How long something lasts, as people write it in a shell."""

from __future__ import annotations

import re
from datetime import timedelta

__all__ = ["duration"]

_UNITS = {"d": "days", "h": "hours", "m": "minutes", "s": "seconds"}
_PART = r"(\d+(?:\.\d+)?)"
_DURATION = re.compile("".join(f"(?:{_PART}{unit})?" for unit in _UNITS))


def duration(text: str) -> timedelta | None:
    """Read ``90s``, ``10m``, ``2h``, ``1d`` or several of them, ``1h30m``; None if it is none, or not more than 0."""
    found = _DURATION.fullmatch(text)
    parts = found.groups() if found else ()
    try:
        length = timedelta(**{unit: float(part) for unit, part in zip(_UNITS.values(), parts, strict=False) if part})
    except OverflowError:
        return None
    return length or None
