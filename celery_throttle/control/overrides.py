"""Check the values of a change (other permits, another rate, its end), and compute the status of limits after it."""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from celery_throttle.control.verbs import VERBS
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.checks import seconds, whole
from celery_throttle.core.limits import Limit
from celery_throttle.core.rates import Rate, read_rates
from celery_throttle.errors import ConfigurationError
from celery_throttle.store.limit_status import RateStatus, RuntimeOverride, rates_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import tzinfo

    from celery_throttle.control.reader import Reader
    from celery_throttle.control.verbs import Ending
    from celery_throttle.store.limit_status import LimitStatus

__all__ = ["Numbers", "Until", "moment_of", "read_numbers", "status_after", "until_text"]

Until = datetime | timedelta | float | None

_LATEST_YEAR = 2200
#: Numbers in this range are Unix times: as seconds from now they would be 31 years or more.
_UNIX_TIMES = 1e9, 7e9
_EPOCH = datetime.fromtimestamp(0, timezone.utc)


@dataclass(frozen=True)
class Numbers:
    """The permits and rates of a limit; None and empty: any number and none, in an override: no change."""

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


def read_numbers(
    method: str,
    bucket: Bucket,
    permits: object,
    rate: Any,
    burst: Any,
    declared: Callable[[], Sequence[RateStatus]],
) -> Numbers:
    """Check the values of a user for an override; None: not given.

    ``method``: the called method, for the messages. ``burst``: by default that of the code, if it has as many rates,
    else 1. ``declared`` returns the rates of the code.

    Raises:
        ConfigurationError: neither permits nor rate is given, or a value cannot work.
    """
    if permits is None and rate is None:
        both = f"write {method}(5), or {method}(rate='50/m')"
        fix = both if burst is None else f"write {method}(rate='50/m', burst={burst!r})"
        raise ConfigurationError(f"Limit {bucket}: {method} needs a number of permits or a rate: {fix}")
    if rate is None and burst is not None:
        raise ConfigurationError(
            f"Limit {bucket}: burst needs a rate beside it: write {method}({permits!r}, rate='50/m', burst={burst!r})"
        )
    number = None if permits is None else whole(f"Limit {bucket}: permits", permits, fix=_instead(method, permits))
    return Numbers(number, () if rate is None else _rates(bucket, rate, burst, declared))


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


def moment_of(until: Any) -> Any:
    """Return a Unix time, such as ``time.time() + 60``, as a datetime, and other values unchanged."""
    is_time = isinstance(until, int | float) and _UNIX_TIMES[0] <= until < _UNIX_TIMES[1]
    return datetime.fromtimestamp(until, timezone.utc) if is_time else until


def until_text(bucket: Bucket, until: Any, zone: tzinfo) -> str:
    """Return a time for control.lua: ``0`` (no end), ``+ms`` from now, or ms.

    `ConfigurationError` if the value is no such time, or out of range.
    """
    if until is None:
        return "0"
    if isinstance(until, datetime) and until.year <= _LATEST_YEAR:
        aware = until if until.tzinfo else until.replace(tzinfo=zone)
        return f"{max(aware.timestamp(), 0.001) * 1000:.0f}"
    fix = f"until=3600, or a datetime up to the year {_LATEST_YEAR}"
    return f"+{seconds(f'Limit {bucket}: until', until, 0.001, fix=fix) * 1000:.0f}"


def status_after(
    reader: Reader, bucket: Bucket, change: Numbers | Ending, stands: dict[Bucket, LimitStatus]
) -> dict[Bucket, LimitStatus]:
    """Return the status of limits after a change of one limit (with all its keys) or key.

    ``stands``: the present status of each, with the limit itself.
    """
    found = dict(stands)
    by_rates: dict[tuple[RateStatus, ...], list[str]] = defaultdict(list)
    for each, before in stands.items():
        if not bucket.includes(each):
            continue
        if isinstance(change, Numbers):
            found[each] = _overridden(before, bucket, change)
        else:
            found[each] = _ended(before, bucket, change, stands[Bucket(bucket.name)])
        if found[each].rates_in_force != before.rates_in_force:
            found[each] = replace(found[each], next_start_in=0.0)
            by_rates[found[each].rates_in_force].append(each.text)
    for rates, buckets in by_rates.items():
        for status in reader.stand(buckets, Numbers(rates=rates).rates_declared) if rates else ():
            found[status.bucket] = replace(found[status.bucket], next_start_in=status.next_start_in)
    return found


def _overridden(status: LimitStatus, bucket: Bucket, change: Numbers) -> LimitStatus:
    """Return the status of a limit after the override; an override of one key takes precedence over the limit's."""
    if status.disabled:
        return status
    if change.permits is not None and not _has_own(status, status.override, bucket):
        status = replace(status, in_force=change.permits)
    if change.rates and not _has_own(status, status.rate_override, bucket):
        status = replace(status, rate_override=RuntimeOverride(str(bucket), "", "", _EPOCH, None, rates=change.rates))
    return status


def _has_own(status: LimitStatus, override: RuntimeOverride | None, bucket: Bucket) -> bool:
    """Return whether the limit is changed, and the key has an override of its own."""
    return bucket.key is None and override is not None and status.scope(override) != bucket


def _ended(status: LimitStatus, bucket: Bucket, change: Ending, limit: LimitStatus) -> LimitStatus:
    """Return the status of a limit or key after the change; a key's own change hides the same change of its limit."""
    ends: dict[str, Any] = {}
    all_keys = change == "release-hold" and bucket.key is None
    for what in VERBS[change].ends:
        override = getattr(status, what)
        if override and (all_keys or status.scope(override) == bucket):
            hidden = getattr(limit, what) if bucket.key is not None else None
            ends[what] = hidden
    if not ends:
        return status
    status = replace(status, **ends)
    if not status.declared or change not in ("reset", "enable"):
        return status
    permits = status.permits
    if status.override and status.override.permits is not None:
        permits = status.override.permits
    return replace(status, in_force=None if status.disabled else permits)
