"""The definition of a rate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

from celery_throttle.core.meant_rates import EXAMPLES, SECONDS, fix_of, whole
from celery_throttle.errors import ConfigurationError

__all__ = ["Rate", "Rates", "read_rates"]

Unit = Literal["s", "m", "h", "d"]

_MOST = 10**12
_MOST_RATES = 8


@dataclass(frozen=True)
class Rate:
    """A number of starts per second, minute, hour or day::

        Rate.parse("100/m") == Rate(100, "m")
        str(Rate(100, "m")) == "100/m"

    Attributes:
        count: the number of starts.
        unit: second (``s``), minute (``m``), hour (``h``) or day (``d``).

    Raises:
        ConfigurationError: the number or the unit cannot work; the message has the fix.
    """

    count: int
    unit: Unit

    def __post_init__(self) -> None:
        _check(self.count, self.unit)

    def __str__(self) -> str:
        return f"{self.count}/{self.unit}"

    @classmethod
    def parse(cls, text: object) -> Rate:
        """Read ``"100/m"``.

        Raises:
            ConfigurationError: the value is not such a text.
        """
        if not isinstance(text, str):
            raise ConfigurationError(f"A rate is text such as '100/m', got {text!r}: {fix_of(text)}")
        number, slash, unit = (part.strip() for part in text.partition("/"))
        if not slash:
            raise ConfigurationError(f"Rate {text!r} has no unit of time: {fix_of(text)}")
        count = _number(number)
        if count is None:
            raise ConfigurationError(f"Rate {text!r} does not begin with a number: {fix_of(text)}")
        if unit and not unit.isalpha():
            raise ConfigurationError(f"Rate: unknown unit {unit!r}, {fix_of(text)}")
        _check(count, unit)
        return cls(cast("int", count), cast("Unit", unit))

    @classmethod
    def of(cls, count: int, period: int) -> Rate:
        """Return the rate of ``count`` in a period (in microseconds) that is the length of a unit.

        Raises:
            ValueError: no unit has this length.
        """
        units = [unit for unit, seconds in SECONDS.items() if seconds * 1_000_000 == period]
        if not units:
            raise ValueError(f"no unit has {period} microseconds")
        return cls(count, cast("Unit", units[0]))

    @property
    def period(self) -> int:
        """The unit in microseconds."""
        return SECONDS[self.unit] * 1_000_000

    def spacing(self, amount: int) -> tuple[int, int]:
        """Return the time for ``amount`` starts: whole microseconds, and the rest in 1/`count` microseconds."""
        return divmod(amount * self.period, self.count)


#: The types of the argument ``rate``.
Rates = str | Rate | Sequence[str | Rate]


def read_rates(rates: str | Rate | Sequence[str | Rate]) -> tuple[Rate, ...]:
    """Return a user's rates as a tuple; a text is parsed.

    Raises:
        ConfigurationError: there is no rate, there are more than 8, or one cannot work.
    """
    several = rates if isinstance(rates, Sequence) and not isinstance(rates, (str, bytes)) else (rates,)
    if len(several) > 1 and not isinstance(several[0], Rate) and "/" not in str(several[0]):  # (100, "m"), (100, 60)
        raise ConfigurationError(f"A rate is text such as '100/m', got {rates!r}: {fix_of(rates)}")
    if not 1 <= len(several) <= _MOST_RATES:
        raise ConfigurationError(f"Give one rate or up to {_MOST_RATES}, got {len(several)}: write {EXAMPLES}")
    return tuple(rate if isinstance(rate, Rate) else Rate.parse(rate) for rate in several)


def _number(text: str) -> int | float | None:
    if re.fullmatch(r"[+-]?[0-9]+", text):
        return int(text)
    try:
        return float(text)
    except ValueError:
        return None


def _check(count: object, unit: object) -> None:
    if unit not in SECONDS:
        meant = unit[:1].lower() if isinstance(unit, str) else ""
        fix = (
            f"write '{count}/{meant}'"
            if meant in SECONDS
            else f"write '{count}/s', '{count}/m', '{count}/h' or '{count}/d'"
        )
        raise ConfigurationError(f"Rate: unknown unit {unit!r}, {fix}")
    if isinstance(count, bool) or not isinstance(count, int):
        raise ConfigurationError(f"Rate: the count must be a whole number, got {count!r}/{unit}: {whole(count, unit)}")
    if count < 1:
        raise ConfigurationError(
            f"Rate: the count must be 1 or more, got {count}/{unit}: write the slowest that may be, such as '1/d'"
        )
    if count > _MOST:
        raise ConfigurationError(f"Rate: the count must be {_MOST} at most, got {count}/{unit}: leave the rate out")
