"""Guess the rate that a user meant by another notation: "100 per minute", (100, 60), "100/10s"."""

from __future__ import annotations

import re
from datetime import timedelta
from fractions import Fraction

__all__ = ["EXAMPLES", "SECONDS", "fix_of", "whole"]

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
EXAMPLES = "'10/s', '100/m', '5000/h' or '1/d'"
_PAIR = 2
_RIGHT = re.compile(r"[0-9]+ */ *[smhd]")
_LOOSELY = re.compile(r"([0-9]+) *(?:/|per|a|an|every|in) *([0-9]+)? *([a-z]+)?")


def fix_of(given: object) -> str:
    """Return the fix for a value that is no rate."""
    return f"write {_meant(given) or EXAMPLES}"


def _meant(given: object) -> str | None:
    if isinstance(given, bytes):
        given = given.decode(errors="replace")
    if isinstance(given, timedelta) and given > timedelta(0):
        return _in_units(1 / Fraction(given.total_seconds()))
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return _in_units(Fraction(given)) if 1 <= given < float("inf") else None
    if isinstance(given, (list, tuple)) and len(given) == _PAIR:
        given = "/".join(map(str, given))
    return _read(given.strip().lower().replace("_", "")) if isinstance(given, str) else None


def _read(text: str) -> str | None:
    several = [part.strip() for part in re.split("[,;]", text)]
    if len(several) > 1 and all(map(_RIGHT.fullmatch, several)):
        return f"[{', '.join(map(repr, several))}], burst={_bursts(several)}"
    found = _LOOSELY.fullmatch(text.replace(",", ""))
    if found is None:
        return None
    count, times, unit = int(found[1]), found[2], (found[3] or "s")[0]
    if times is None:
        return repr(f"{count}/{unit}") if found[3] and unit in SECONDS else None
    return _in_units(Fraction(count, int(times) * SECONDS[unit])) if int(times) and unit in SECONDS else None


def _bursts(rates: list[str]) -> list[int]:
    """Return bursts with which each of several rates has an effect: a slower rate needs the larger burst."""
    counts = [int(rate.partition("/")[0]) for rate in rates]
    pace = [Fraction(count, SECONDS[rate[-1]]) for count, rate in zip(counts, rates, strict=True)]
    return [1 if each == max(pace) else max(count, 2) for count, each in zip(counts, pace, strict=True)]


def _in_units(per_second: Fraction) -> str | None:
    """Return a rate as text, per the shortest unit in which it is a whole number; None if there is no such unit."""
    for unit, seconds in SECONDS.items():
        count = per_second * seconds
        if count >= 1 and count.denominator == 1:
            return repr(f"{count}/{unit}")
    return None


def whole(count: object, unit: object) -> str:
    """Return the fix for a count that is not a whole number: the same rate per a unit that is at least as long."""
    try:
        per_second = Fraction(str(count)) / SECONDS[str(unit)]
    except ValueError:  # not a number at all, or infinite
        return f"write {EXAMPLES}"
    for name, seconds in SECONDS.items():
        there = per_second * seconds
        if seconds >= SECONDS[str(unit)] and there.denominator == 1 and there > 0:
            return f"write '{there}/{name}'"
    return "round it, or count per a longer unit"
