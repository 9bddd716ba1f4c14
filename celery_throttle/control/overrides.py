"""Check the values of a change: another number of permits, another rate, and the time when the change ends."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from celery_throttle.core.checks import seconds, whole
from celery_throttle.core.limits import Limit
from celery_throttle.core.rates import Rate, read_rates
from celery_throttle.errors import ConfigurationError
from celery_throttle.store.limit_status import RateStatus, rates_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import tzinfo

    from celery_throttle.core.buckets import Bucket

__all__ = ["Override", "Until", "moment_of", "read_override", "until_text"]

Until = datetime | timedelta | float | None

_LATEST_YEAR = 2200
#: Numbers in this range are Unix times: as seconds from now they would be 31 years or more.
_UNIX_TIMES = 1e9, 7e9


@dataclass(frozen=True)
class Override:
    """Other numbers for a limit.

    Attributes:
        permits: the number of permits, None: no change.
        rates: the rates, empty: no change.
    """

    permits: int | None = None
    rates: tuple[RateStatus, ...] = ()

    def __str__(self) -> str:
        rates = f"rate {rates_text(self.rates)}" if self.rates else ""
        return ", ".join(filter(None, ["" if self.permits is None else str(self.permits), rates]))

    @property
    def value(self) -> str:
        """The JSON for control.lua."""
        given: dict[str, Any] = {} if self.permits is None else {"permits": self.permits}
        if self.rates:
            given["rates"] = self.rates_declared
        return json.dumps(given)

    @property
    def rates_declared(self) -> list[tuple[int, int, int]]:
        """The rates in the form of a declaration: (count, period in us, burst) of each."""
        read = [(Rate.parse(each.rate), each.burst) for each in self.rates]
        return [(rate.count, rate.period, burst) for rate, burst in read]


def read_override(
    method: str,
    bucket: Bucket,
    permits: object,
    rate: Any,
    burst: Any,
    declared: Callable[[], Sequence[RateStatus]],
) -> Override:
    """Check the values of a user for an override.

    Args:
        method: the called method, for the messages.
        bucket: the limit or key to override.
        permits: the given permits, None: not given.
        rate: the given rate, None: not given.
        burst: the given burst, None: that of the code, if it has as many rates, else 1.
        declared: returns the rates of the code.

    Raises:
        ConfigurationError: neither permits nor rate is given, or a value cannot work.
    """
    if permits is None and rate is None:
        fix = f"write {method}(rate='50/m', burst={burst!r})" if burst is not None else _both(method)
        raise ConfigurationError(f"Limit {bucket}: {method} needs a number of permits or a rate: {fix}")
    if rate is None and burst is not None:
        raise ConfigurationError(
            f"Limit {bucket}: burst needs a rate beside it: write {method}({permits!r}, rate='50/m', burst={burst!r})"
        )
    number = None if permits is None else whole(f"Limit {bucket}: permits", permits, fix=_instead(method, permits))
    return Override(number, () if rate is None else _rates(bucket, rate, burst, declared))


def _rates(
    bucket: Bucket, rate: Any, burst: Any, declared: Callable[[], Sequence[RateStatus]]
) -> tuple[RateStatus, ...]:
    if burst is None:
        try:
            count = len(read_rates(rate))
        except ConfigurationError as error:
            raise ConfigurationError(f"Limit {bucket}: {error}") from None
        bursts = [each.burst for each in declared()]
        burst = bursts if len(bursts) == count else 1
    checked = Limit(bucket.name, rate=rate, burst=burst).rates
    return tuple(RateStatus(str(each), several) for each, several in checked)


def _instead(method: str, permits: object) -> str:
    if permits == 0:
        return "pause() to let none start"
    return f"{method}(rate={permits!r})" if isinstance(permits, str) and "/" in permits else f"{method}(5)"


def _both(method: str) -> str:
    return f"write {method}(5), or {method}(rate='50/m')"


def moment_of(until: Any) -> Any:
    """Return a Unix time, such as ``time.time() + 60``, as a datetime, and other values unchanged."""
    is_time = isinstance(until, int | float) and _UNIX_TIMES[0] <= until < _UNIX_TIMES[1]
    return datetime.fromtimestamp(until, timezone.utc) if is_time else until


def until_text(bucket: Bucket, until: Any, zone: tzinfo) -> str:
    """Return a time for control.lua: ``0`` (no end), ``+ms`` from now, or ms.

    Raises:
        ConfigurationError: the value is no such time, or out of range.
    """
    if until is None:
        return "0"
    if isinstance(until, datetime) and until.year <= _LATEST_YEAR:
        aware = until if until.tzinfo else until.replace(tzinfo=zone)
        return f"{max(aware.timestamp(), 0.001) * 1000:.0f}"
    fix = f"until=3600, or a datetime up to the year {_LATEST_YEAR}"
    return f"+{seconds(f'Limit {bucket}: until', until, 0.001, fix=fix) * 1000:.0f}"
