"""Check the numbers, seconds, names and choices that users give.

Each check returns the value, or raises a `ConfigurationError` that has the option, the value and the fix.
"""

from __future__ import annotations

import math
from datetime import timedelta
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from typing_extensions import TypeIs

__all__ = [
    "MOST",
    "NOT_IN_KEYS",
    "TEN_YEARS",
    "closest",
    "flag",
    "group_name",
    "is_whole",
    "key_part",
    "one_of",
    "plain",
    "seconds",
    "text",
    "whole",
]

#: The highest number of permits, of parked tasks, of rounds.
MOST = 10**9 - 1
#: In seconds.
TEN_YEARS = 10 * 365 * 86400.0
NOT_IN_KEYS = frozenset("{}*?[]\\ \n")


def is_whole(value: object, least: int = 1, most: int = MOST) -> TypeIs[int]:
    """Return whether a value is a whole number in a range."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def whole(what: str, value: object, least: int = 1, most: int = MOST, usual: int = 2, fix: str = "") -> int:
    """Return a value if it is a whole number in a range.

    Args:
        what: the object and the option, which is the last word: ``"Limit 'gpu': permits"``.
        value: the value as given.
        least: the lowest number.
        most: the highest number.
        usual: a number for the fix.
        fix: the fix, where it is not a number of that option.

    Raises:
        ConfigurationError: the value is another one.
    """
    if not is_whole(value, least, most):
        raise _wrong(what, f"a whole number from {least} to {most}", value, usual, fix)
    return value


def seconds(
    what: str, value: object, least: float = 0.0, most: float = TEN_YEARS, usual: float = 30, fix: str = ""
) -> float:
    """Return seconds or a timedelta as seconds, see `whole`."""
    number = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not least <= number <= most:
        many = f"{plain(least)} or more" if most == math.inf else f"from {plain(least)} to {plain(most)}"
        raise _wrong(what, f"seconds or a timedelta, {many}", value, usual, fix)
    return float(number)


def flag(what: str, value: object) -> bool:
    """Return a bool, see `whole`."""
    if not isinstance(value, bool):
        raise _wrong(what, "True or False", value, str(value).strip().lower() not in ("0", "false", "no", "off", ""))
    return value


def one_of(what: str, value: object, choices: Sequence[str]) -> Any:
    """Return a value if it is among the choices, see `whole`; the fix is the most similar choice, or else the first."""
    if value not in choices:
        known = f"one of {', '.join(map(repr, choices))}"
        raise _wrong(what, known, value, closest(str(value).lower(), choices) or choices[0])
    return value


def text(what: str, value: object, most: int = 200, usual: str = "gpu") -> str:
    """Return a value if it is text that people can read, see `whole`: printable, not blank, not too long."""
    if not isinstance(value, str) or not value.strip() or len(value) > most or not value.isprintable():
        raise _wrong(what, f"1 to {most} printable characters", value, usual)
    return value


def key_part(what: str, value: object, usual: str) -> str:
    """Return a value if it can be the hash tag of a key without quoting in ``SCAN MATCH``, see `whole`."""
    if not isinstance(value, str) or not value.isprintable() or not 0 < len(value) <= 200 or NOT_IN_KEYS & set(value):  # noqa: PLR2004 - as for names
        raise _wrong(what, "text without braces, wildcards and blanks", value, usual)
    return value


def group_name(what: str, value: object) -> str:
    """Return a value if it can be the name of a group, a part of the hash tag, or "" for none, see `whole`."""
    if value == "":
        return ""
    if isinstance(value, str) and ":" in value:
        raise _wrong(what, "text without colons", value, "eu")
    return key_part(what, value, "eu")


def closest(word: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """Return the most similar of some words, "" if none is similar."""
    return next(iter(get_close_matches(word, sorted(known), n=1, cutoff=cutoff)), "")


def plain(number: float) -> str:
    """Return a number as people write it: 1000000, not 1e+06."""
    return f"{number:.6f}".rstrip("0").rstrip(".")


def _wrong(what: str, must_be: str, value: object, usual: object, fix: str = "") -> ConfigurationError:
    fix = fix or f"{what.rpartition(' ')[2]}={usual!r}"
    return ConfigurationError(f"{what} must be {must_be}, got {value!r:.200}: write {fix}")
