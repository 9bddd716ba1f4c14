"""Compute the status of limits after the end of a pause, an override, a hold or a disabling."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

from celery_throttle.control.overrides import Override
from celery_throttle.control.verbs import VERBS, Ending
from celery_throttle.core.buckets import Bucket
from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from celery_throttle.control.reader import Reader
    from celery_throttle.store.limit_status import LimitStatus, RateStatus

__all__ = ["checked_change", "without"]


def checked_change(bucket: Bucket, change: object) -> Ending:
    """Return the checked name of a change.

    Raises:
        ConfigurationError: there is no such change.
    """
    found: Ending | None = next((each for each in get_args(Ending) if each == change), None)
    if found is None:
        known = ", ".join(map(repr, get_args(Ending)))
        raise ConfigurationError(
            f"Limit {bucket}: forecast: after must be one of {known}, got {change!r}: write forecast(after='resume')"
        )
    return found


def without(
    reader: Reader, bucket: Bucket, change: Ending, stands: dict[Bucket, LimitStatus]
) -> dict[Bucket, LimitStatus]:
    """Return the status of limits after a change that ends another one.

    Args:
        reader: the reader of their group.
        bucket: the changed limit (with all its keys), or the changed key.
        change: the change.
        stands: the present status of each, with the limit itself.
    """
    found = {each: _ended(status, bucket, change, stands[Bucket(bucket.name)]) for each, status in stands.items()}
    by_rates: dict[tuple[RateStatus, ...], list[str]] = defaultdict(list)
    for each, status in found.items():
        if status.rates_in_force != stands[each].rates_in_force:
            found[each] = replace(status, next_start_in=0.0)
            by_rates[status.rates_in_force].append(each.text)
    for rates, buckets in by_rates.items():
        for status in reader.stand(buckets, Override(rates=rates).rates_declared) if rates else ():
            found[status.bucket] = replace(found[status.bucket], next_start_in=status.next_start_in)
    return found


def _ended(status: LimitStatus, bucket: Bucket, change: Ending, limit: LimitStatus) -> LimitStatus:
    """Return the status of a limit or key after the change; a key's own change hides the same change of its limit."""
    if status.name != bucket.name or bucket.key not in (None, status.key):
        return status
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
