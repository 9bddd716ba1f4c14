"""Compute the status of limits after a change: an override, or the end of another change."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from celery_throttle.control.overrides import Override
from celery_throttle.control.verbs import VERBS
from celery_throttle.core.buckets import Bucket
from celery_throttle.store.limit_status import RuntimeOverride

if TYPE_CHECKING:
    from celery_throttle.control.reader import Reader
    from celery_throttle.control.verbs import Ending
    from celery_throttle.store.limit_status import LimitStatus, RateStatus

__all__ = ["is_meant", "status_after"]

_EPOCH = datetime.fromtimestamp(0, timezone.utc)


def status_after(
    reader: Reader, bucket: Bucket, change: Override | Ending, stands: dict[Bucket, LimitStatus]
) -> dict[Bucket, LimitStatus]:
    """Return the status of limits after a change.

    Args:
        reader: the reader of their group.
        bucket: the changed limit (with all its keys), or the changed key.
        change: the change.
        stands: the present status of each, with the limit itself.
    """
    found = dict(stands)
    by_rates: dict[tuple[RateStatus, ...], list[str]] = defaultdict(list)
    for each, before in stands.items():
        if not is_meant(before, bucket):
            continue
        if isinstance(change, Override):
            found[each] = _overridden(before, bucket, change)
        else:
            found[each] = _ended(before, bucket, change, stands[Bucket(bucket.name)])
        if found[each].rates_in_force != before.rates_in_force:
            found[each] = replace(found[each], next_start_in=0.0)
            by_rates[found[each].rates_in_force].append(each.text)
    for rates, buckets in by_rates.items():
        for status in reader.stand(buckets, Override(rates=rates).rates_declared) if rates else ():
            found[status.bucket] = replace(found[status.bucket], next_start_in=status.next_start_in)
    return found


def is_meant(status: LimitStatus, bucket: Bucket) -> bool:
    """Return whether a change of this limit (with all its keys), or of this key, is one of the limit or key."""
    return status.name == bucket.name and bucket.key in (None, status.key)


def _overridden(status: LimitStatus, bucket: Bucket, change: Override) -> LimitStatus:
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
