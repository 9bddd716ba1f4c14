"""The definition of a rate."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from celery_throttle.core.checks import whole
from celery_throttle.core.wording import counted
from celery_throttle.errors import ConfigurationError

__all__ = ["Rate", "Rates", "read_bursts", "read_rates"]

Unit = Literal["s", "m", "h", "d"]

_MOST = 10**12
_MOST_RATES = 8
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_EXAMPLES = "'10/s', '100/m', '5000/h' or '1/d'"
_EXACT = re.compile(r" *([0-9]+) */ *([smhd]) *")
#: A rate in another notation: "100 per minute", "100/min".
_LOOSELY = re.compile(r"(?i) *(\d+) *(?:/|per|an?) *(s(?:ec(?:ond)?)?|m(?:in(?:ute)?)?|h(?:our)?|d(?:ay)?)s? *")


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
        whole("Rate: count", self.count, most=_MOST, usual=100)
        if self.unit not in _SECONDS:
            raise ConfigurationError(
                f"Rate: unit must be 's', 'm', 'h' or 'd', got {self.unit!r}: write Rate({self.count}, 'm')"
            )

    def __str__(self) -> str:
        return f"{self.count}/{self.unit}"

    @classmethod
    def parse(cls, text: object) -> Rate:
        """Read ``"100/m"``.

        Raises:
            ConfigurationError: the value is not such a text.
        """
        found = _EXACT.fullmatch(text) if isinstance(text, str) else None
        if found is None or not 1 <= int(found[1]) <= _MOST:
            raise ConfigurationError(f"A rate is text such as '100/m', got {text!r}: {_fix(text)}")
        return cls(int(found[1]), cast("Unit", found[2]))

    @classmethod
    def of(cls, count: int, period: int) -> Rate:
        """Return the rate of ``count`` in a period (in microseconds) that is the length of a unit.

        Raises:
            ValueError: no unit has this length.
        """
        units = [unit for unit, seconds in _SECONDS.items() if seconds * 1_000_000 == period]
        if not units:
            raise ValueError(f"no unit has {period} microseconds")
        return cls(count, cast("Unit", units[0]))

    @property
    def period(self) -> int:
        """The unit in microseconds."""
        return _SECONDS[self.unit] * 1_000_000

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
    if not 1 <= len(several) <= _MOST_RATES:
        raise ConfigurationError(f"Give one rate or up to {_MOST_RATES}, got {len(several)}: write {_EXAMPLES}")
    return tuple(rate if isinstance(rate, Rate) else Rate.parse(rate) for rate in several)


def read_bursts(what: str, burst: Any, rates: Sequence[Rate], most: int) -> tuple[int, ...]:
    """Return the burst of each rate, at most ``most``, from one number for all or from one for each.

    ``what`` is the object that has the rates, for the message: ``"Limit 'gpu': "``.

    Raises:
        ConfigurationError: there are more or fewer bursts than rates, or one cannot work.
    """
    several = isinstance(burst, Sequence) and not isinstance(burst, str)
    bursts: tuple[Any, ...] = tuple(burst) if several else (burst,) * len(rates)
    if len(bursts) != len(rates):
        raise ConfigurationError(
            f"{what}burst {burst!r} has {counted(len(bursts), 'number')} for {counted(len(rates), 'rate')}: give one "
            f"for all, burst=10, or one for each"
        )
    return tuple(whole(f"{what}burst", each, most=most, usual=10) for each in bursts)


def _fix(given: object) -> str:
    """Return the fix for a value that is no rate."""
    if isinstance(given, str) and _EXACT.fullmatch(given):
        return f"write a number from 1 to {_MOST}"
    found = _LOOSELY.fullmatch(given) if isinstance(given, str) else None
    return f"write '{found[1]}/{found[2][0].lower()}'" if found else f"write {_EXAMPLES}"
