"""Write times, seconds and counts for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

__all__ = [
    "at",
    "counted",
    "end_of",
    "listed",
    "often",
    "one_line",
    "seconds",
    "shortened",
    "signature",
    "span",
    "started_before",
    "times",
]

_EXACT = 10
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


def at(when: datetime) -> str:
    """Return a time: ``2026-11-22 14:00:05 UTC``."""
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"


def end_of(since: datetime, until: datetime) -> str:
    """Return a time in the future: ``14:00 UTC``, with its date if that differs from the date of ``since``."""
    day = "" if until.date() == since.date() else "%Y-%m-%d "
    return until.strftime(f"{day}%H:%M{':%S' if until.second else ''} UTC")


def seconds(number: float) -> str:
    """Return seconds: ``0.4 s``, ``48 s``."""
    return f"{number:.1f} s" if number < _EXACT else f"{number:.0f} s"


def span(seconds: float) -> str:
    """Return a length of time: ``0.4 s``, ``12 s``, ``3m 20s``, ``2h 5m``, ``3d 4h``."""
    if seconds < 0:
        return f"-{span(-seconds)}"
    if seconds < 9.95:  # noqa: PLR2004 - below it the digit after the point matters
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < _MINUTE:
        return f"{whole} s"
    if whole < _HOUR:
        return f"{whole // _MINUTE}m {whole % _MINUTE}s"
    if whole < _DAY:
        return f"{whole // _HOUR}h {whole % _HOUR // _MINUTE}m"
    return f"{whole // _DAY}d {whole % _DAY // _HOUR}h"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 permit``, ``2 permits``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def often(per_second: float) -> str:
    """Return a frequency, in the first unit that gives 1 or more: ``12 a second``, ``5 a minute``, ``1.5 an hour``."""
    units = (("a second", 1), ("a minute", _MINUTE), ("an hour", _HOUR))
    unit, number = next(((unit, per_second * long) for unit, long in units if per_second * long >= 1), ("", 0.0))
    if not unit:
        return "less than one an hour"
    return f"{number:.0f} {unit}" if number >= _EXACT else f"{float(f'{number:.2g}'):g} {unit}"


def times(number: int) -> str:
    """Return a number of times: ``once``, ``3 times``."""
    return "once" if number == 1 else f"{number} times"


def started_before(deliveries: int) -> str:
    """Return ``, started 3 times before``; "" for a task that never started."""
    return f", started {times(deliveries)} before" if deliveries else ""


def listed(parts: list[str]) -> str:
    """Return ``a, b and c``; "" for no parts."""
    return " and ".join([", ".join(parts[:-1]), parts[-1]]) if len(parts) > 1 else "".join(parts)


def shortened(parts: list[str], most: int, *, at_least: bool = False) -> str:
    """Return ``a, b and 38 more``; ``at_least``: the list of parts may be incomplete."""
    left = len(parts) - most
    if left <= 0:
        return listed([*parts, "maybe others"] if at_least else parts)
    return listed([*parts[:most], f"{left} {'or more others' if at_least else 'more'}"])


def signature(by: str, why: str) -> str:
    """Return author and reason of a change on one line: ``ana: their incident``."""
    return one_line(f"{by}: {why}" if why else by)


def one_line(text: str) -> str:
    """Return a text from outside with line breaks and terminal control characters escaped, for logs and output."""
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in text)
