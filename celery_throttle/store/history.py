"""The history of a limit: counts of starts, waits and ends, period by period."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_throttle.core.history import MINUTES, SLOT, WAITS, Place
from celery_throttle.core.policy import costs_of
from celery_throttle.core.wording import at, span

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from celery_throttle.core.history import Ring

__all__ = ["Counted", "History", "LastHour", "Period", "by_limit", "histories", "last_hours"]

_SLOT = struct.Struct(f">{SLOT}I")
_NOTHING = (0,) * SLOT
_RECENT = timedelta(minutes=10)
_WAITED = slice(Place.WAITED, Place.WAITED + len(WAITS))
#: The fields of a `Period` that are counters of the same name (see `Place`): numbers, times in ms, and peaks plus one.
_COUNTED = ("at_once", "parked", "ended", "failed", "reclaimed", "sent_back", "refused", "duplicates")
_TIMES = ("wait_time", "run_time")
_PEAKS = ("held_most", "parked_most")


class Counted(NamedTuple):
    """The counts of a limit: place, count, place, count, ... (see core/history.py).

    Attributes:
        has_keys: whether the limit has keys: then the numbers of holders and parked tasks in all are not known.
    """

    limit: str
    has_keys: bool
    counts: list[int]


@dataclass(frozen=True)
class Period:
    """The counts of a minute, of a quarter of an hour, or of all periods.

    Busy workers report their counts each ten seconds, others once a minute. The counts belong to the period of the
    report.

    Attributes:
        since: the begin of the period, by the store's clock.
        length: the length of the period in seconds.
        at_once: the number of runs that started without waiting in line.
        waited: the number of runs that started after a wait, one for each bound in `core.history.WAITS`. A bound counts
            waits up to its length and above the bound before; the last bound counts longer waits too.
        wait_time: the seconds that runs waited, in all.
        parked: the number of tasks that were parked.
        ended: the number of runs that ended.
        failed: the number of runs that failed.
        run_time: the seconds that runs took, in all.
        reclaimed: the number of permits of lost workers that were reclaimed.
        sent_back: the number of runs that raised RateLimited.
        refused: the number of tasks that were not parked, because max_parked tasks were parked already.
        duplicates: the number of tasks that did not run because another call had the identity lock.
        held_most: the most permits held when a worker reported; None: no worker reported, or the limit has keys.
        parked_most: the most parked tasks when a worker reported; None as above.
    """

    since: datetime
    length: float
    at_once: int
    waited: tuple[int, ...]
    wait_time: float
    parked: int
    ended: int
    failed: int
    run_time: float
    reclaimed: int
    sent_back: int
    refused: int
    duplicates: int
    held_most: int | None
    parked_most: int | None

    @property
    def started(self) -> int:
        """The number of runs that started."""
        return self.at_once + sum(self.waited)

    def wait(self, share: float) -> float | None:
        """Return the wait in seconds within which this share of the runs started; None if none started.

        The wait is rounded up to the next of `core.history.WAITS`, each of which is twice the one before.
        """
        return within(share, self.at_once, self.waited)


@dataclass(frozen=True)
class History:
    """The history of a limit.

    Attributes:
        limit: the name of the limit.
        until: the present time, by the store's clock.
        periods: the oldest period first, with empty ones; the last period has just begun.
    """

    limit: str
    until: datetime
    periods: tuple[Period, ...]

    def __str__(self) -> str:
        total, first = self.total, self.periods[0]
        waited = total.wait(0.95)
        facts = [f"{total.started} started", f"{total.ended} ended", f"{total.failed} failed", f"{total.parked} parked"]
        if waited is not None:
            facts.append(f"95% within {span(waited)}")
        return f"{self.limit} since {at(first.since)}: {', '.join(facts)}"

    @property
    def per_second(self) -> float:
        """Starts a second in the last ten minutes, over the whole periods that had starts; 0: none."""
        busy = [each for each in self._recent if each.started]
        whole = busy[1:-1] if busy and busy[-1] is self.periods[-1] else busy[1:]
        return sum(each.started for each in whole) / sum(each.length for each in whole) if whole else 0.0

    @property
    def idle(self) -> float | None:
        """The seconds without a start until now, at the least; None if no start was counted."""
        last = next((each for each in reversed(self.periods) if each.started), None)
        return None if last is None else max((self.until - last.since).total_seconds() - last.length, 0.0)

    @property
    def ended(self) -> int:
        """The number of runs that ended in the last ten minutes, or in all periods if none did."""
        return sum(each.ended for each in self._ended)

    @property
    def run_time(self) -> float | None:
        """The mean run time in seconds of the runs in `ended`; None if there are none."""
        return sum(each.run_time for each in self._ended) / self.ended if self.ended else None

    @property
    def _recent(self) -> tuple[Period, ...]:
        return tuple(each for each in self.periods if self.until - each.since <= _RECENT)

    @property
    def _ended(self) -> tuple[Period, ...]:
        return self._recent if any(each.ended for each in self._recent) else self.periods

    @property
    def total(self) -> Period:
        """The sum of all periods."""

        def column(name: str) -> list[Any]:
            return [getattr(each, name) for each in self.periods]

        sums: dict[str, Any] = {name: sum(column(name)) for name in ("length", *_COUNTED, *_TIMES)}
        for name in _PEAKS:
            sums[name] = max((each for each in column(name) if each is not None), default=None)
        waited = tuple(map(sum, zip(*column("waited"), strict=True)))
        return Period(since=self.periods[0].since, waited=waited, **sums)


def within(share: float, at_once: int, waited: Iterable[int]) -> float | None:
    """Return the wait in seconds within which this share (0 to 1) of the runs started, as `Period.wait`."""
    counts = (at_once, *waited)
    started, reached = sum(counts), 0
    if not started:
        return None
    for count, bound in zip(counts, (0.0, *WAITS), strict=True):
        reached += count
        if reached >= share * started:
            return bound
    return WAITS[-1]


def by_limit(counts: Mapping[str, Sequence[float]]) -> list[Counted]:
    """Return the counts of each limit, from the counts by needs text."""
    found: dict[str, tuple[bool, list[float]]] = {}
    for needs, numbers in counts.items():
        for bucket, _ in costs_of(needs):
            _, sums = found.setdefault(bucket.name, (bucket.key is not None, [0.0] * SLOT))
            for place, number in enumerate(numbers):
                sums[place] += number
    return [Counted(limit, has_keys, _pairs(sums)) for limit, (has_keys, sums) in found.items()]


def _pairs(counts: list[float]) -> list[int]:
    return [number for place, count in enumerate(counts) if count for number in (place, round(count))]


def histories(raw: Any, limits: Iterable[str], ring: Ring) -> list[History]:
    """Read the reply of history.lua."""
    now_ms, rings = raw
    numbers = numbers_at(now_ms, ring)
    now = datetime.fromtimestamp(now_ms / 1000, timezone.utc)
    return [
        History(limit, now, tuple(_periods(packed, numbers, ring))) for limit, packed in zip(limits, rings, strict=True)
    ]


def numbers_at(now_ms: int, ring: Ring) -> range:
    """Return the numbers of the periods that a ring covers at this time, the oldest first."""
    last = now_ms // 1000 // ring.seconds if ring.seconds else 1
    return range(last - ring.slots + 1, last + 1)


def slots_of(packed: bytes, numbers: Iterable[int]) -> list[tuple[int, ...]]:
    """Return the slot of each of these periods in a ring."""
    size = len(packed) // _SLOT.size * _SLOT.size
    slots = {slot[0]: slot for slot in _SLOT.iter_unpack(packed[:size])}
    return [slots.get(number, _NOTHING) for number in numbers]


def _periods(packed: bytes, numbers: range, ring: Ring) -> list[Period]:
    return [_period(slot, number, ring) for slot, number in zip(slots_of(packed, numbers), numbers, strict=True)]


def _period(slot: tuple[int, ...], number: int, ring: Ring) -> Period:
    counts = {each.name.lower(): slot[each] for each in Place}
    values: dict[str, Any] = {name: counts[name] for name in _COUNTED}
    values |= {name: counts[name] / 1000 for name in _TIMES}
    values |= {name: counts[name] - 1 if counts[name] else None for name in _PEAKS}
    since = datetime.fromtimestamp(number * ring.seconds, timezone.utc)
    return Period(since=since, length=float(ring.seconds), waited=slot[_WAITED], **values)


@dataclass(frozen=True)
class LastHour:
    """The starts on a limit (with all its keys) in the last hour, by minute; the last minute has just begun.

    Attributes:
        started: the number of starts in each minute.
        waited: the number of starts after a wait in line, in each minute.
        wait_p95: the wait in seconds within which 95 % of all started, rounded up as in `Period.wait`.
    """

    started: tuple[int, ...]
    waited: tuple[int, ...]
    wait_p95: float


def last_hours(raw: Any, limits: Iterable[str]) -> dict[str, LastHour]:
    """Read the reply of history.lua, for the ring of minutes; limits without a start are left out."""
    now_ms, rings = raw
    minutes = numbers_at(now_ms, MINUTES)
    found = ((limit, _last_hour(packed, minutes)) for limit, packed in zip(limits, rings, strict=True) if packed)
    return {limit: hour for limit, hour in found if hour}


def _last_hour(packed: bytes, minutes: range) -> LastHour | None:
    slots = slots_of(packed, minutes)
    waits = [slot[_WAITED] for slot in slots]
    at_once, waited = [slot[Place.AT_ONCE] for slot in slots], tuple(map(sum, waits))
    p95 = within(0.95, sum(at_once), map(sum, zip(*waits, strict=True)))
    return None if p95 is None else LastHour(tuple(map(sum, zip(at_once, waited, strict=True))), waited, p95)
