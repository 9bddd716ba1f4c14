"""What another number of permits, or another rate, would do: how many start now, and what keeps the others.

Played through on what the store has, as the gate would do it: in order, a line stops at the first that its own limit
refuses, and who is refused by another limit goes to the line of that one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from celery_throttle.control.pace import Pace
from celery_throttle.control.play import Play
from celery_throttle.control.queues import NOBODY_ANSWERED, consumed
from celery_throttle.control.reader import MOST
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.naming import is_outside
from celery_throttle.core.wording import counted, one_line, span
from celery_throttle.store.rows import Said, rates_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.control.overrides import Override
    from celery_throttle.control.reader import Reader
    from celery_throttle.store.rows import LimitStatus, RateStatus

__all__ = ["Bound", "Forecast", "forecast"]

_EPOCH = datetime.fromtimestamp(0, timezone.utc)


@dataclass(frozen=True)
class Bound:
    """What would keep tasks waiting.

    Attributes:
        why: in words.
        tasks: how many it would keep, with those behind them in line.
        limit: which limit it is, None if it is none.
        key: the value of its key.
        queue: which no worker consumes that answers, None if it is not that.
    """

    why: str
    tasks: int
    limit: str | None = None
    key: str | None = None
    queue: str | None = None

    def __str__(self) -> str:
        return f"{counted(self.tasks, 'task')} would wait on: {one_line(self.why)}."


@dataclass(frozen=True)
class Forecast:
    """What other permits, or another rate, would do.

    Attributes:
        limit: of which limit.
        key: the value of its key, None for the limit with all its keys.
        permits: how many there would be; of a limit with keys, for each; None: any number.
        permits_before: in force now; None: any number.
        starts: how many tasks would start at once, if workers have slots for them.
        at_most: whether a rate may let fewer of them start.
        drains: how many more run than may then; where they do, none starts until they have ended.
        bounds: what keeps the others, in the order in which it does.
        looked_at: how many of those who wait were looked at, the first ones.
        parked: how many wait in its lines, or need permits of it in others.
        gone_in: about how many seconds it takes until they are gone as fast as the line moves now; None if it does not
            move, no task waits, or the rate would be another one.
        unchecked: a sentence for each thing that could not be looked at.
        rates: those that there would be; none: it has no rate.
        rates_before: in force now.
        least: how many seconds it takes at the least until those who wait in the line are gone, with another rate; None
            if nobody waits, the rate stays as it is, or the limit has keys.
    """

    limit: str
    key: str | None
    permits: int | None
    permits_before: int | None
    starts: int
    at_most: bool
    drains: int
    bounds: tuple[Bound, ...]
    looked_at: int
    parked: int
    unchecked: tuple[str, ...] = ()
    gone_in: float | None = None
    rates: tuple[RateStatus, ...] = ()
    rates_before: tuple[RateStatus, ...] = ()
    least: float | None = None

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{one_line(str(Bucket(self.limit, self.key)))}: {', '.join(self._changes())}."
        if self.drains:
            yield f"{self.drains} more run than may then: none starts in their place until they have ended."
        most = "At most " if self.at_most else ""
        slots = ", if workers have slots for them" if self.starts else ""
        yield f"{most}{counted(self.starts, 'task')} would start at once{slots}."
        yield from map(str, self.bounds)
        if self.parked > self.looked_at:
            yield f"Of {counted(self.parked, 'task')} that wait, {self.looked_at} in its lines were looked at."
        elif not self.bounds and not self.at_most:
            yield "Nobody would wait for it any longer." if self.starts else "Nobody waits for it."
        if self.least is not None:
            yield f"At {rates_text(self.rates)} it takes {span(self.least)} at the least until the line is gone."
        if self.gone_in is not None:
            yield f"As fast as it moves now, the line is gone in about {span(self.gone_in)}."
        yield from (f"? {each}" for each in self.unchecked)

    def _changes(self) -> Iterator[str]:
        if self.permits != self.permits_before or self.rates == self.rates_before:
            before = "any number" if self.permits_before is None else str(self.permits_before)
            number = "any number of permits" if self.permits is None else counted(self.permits, "permit")
            yield f"{number} instead of {before}"
        if self.rates != self.rates_before:
            yield f"rate {rates_text(self.rates) or 'none'} instead of {rates_text(self.rates_before) or 'none'}"


def forecast(reader: Reader, bucket: Bucket, asked: Override) -> Forecast:
    """Say what an override of a limit (with all its keys), or of one key, would do."""
    waiters = reader.waiters(bucket, MOST)
    needed = {need.bucket for each in waiters for need in each.needs}
    others = {each: reader.waiters(each, 1) for each in sorted(needed - {each.line for each in waiters}, key=str)}
    stands = {each.bucket: each for each in reader.stand([each.text for each in sorted({bucket, *needed}, key=str)])}
    own = [each for each in stands.values() if _is_meant(each, bucket)]
    before = stands[bucket]
    parked = sum(each.parked for each in own)
    pace = reader.pace(before) if parked and bucket.key is None and not asked.rates else Pace()
    soonest = _soonest(reader, own, asked)
    stands = {each.bucket: _changed(each, bucket, asked, soonest) for each in stands.values()}
    # What workers of other brokers consume cannot be asked by this app's remote control.
    queues = {each.queue for each in waiters if not is_outside(each.queue.name) and reader.is_ours(each.queue.broker)}
    taken = consumed(reader.app) if queues else set()
    unchecked = []
    if taken is None:
        unchecked.append(NOBODY_ANSWERED)
    if reader.clock()[1]:
        unchecked.append("What is held: the store has just lost its data, and workers put it back.")
    firsts = {each: first[0].place(each) for each, first in others.items() if first and first[0].line == each}
    play = Play(stands, firsts, set() if taken is None else {each for each in queues if each.name not in taken})
    play.run(waiters)
    return Forecast(
        bucket.name,
        bucket.key,
        before.in_force if asked.permits is None else asked.permits,
        before.in_force,
        play.starts.total(),
        play.at_most,
        sum(_too_many(stands[each.bucket]) for each in own if stands[each.bucket].in_force == asked.permits),
        tuple(Bound(why, count, *where) for (why, *where), count in play.bounds.items()),
        len(waiters),
        parked,
        tuple(unchecked),
        pace.starts_in(parked),
        asked.rates or before.rates_in_force,
        before.rates_in_force,
        _least(parked, asked) if bucket.key is not None or not any(each.key for each in own) else None,
    )


def _is_meant(status: LimitStatus, bucket: Bucket) -> bool:
    return status.name == bucket.name and bucket.key in (None, status.key)


def _soonest(reader: Reader, own: list[LimitStatus], asked: Override) -> dict[Bucket, float]:
    """Return when each could start next with the other rates."""
    if not asked.rates:
        return {}
    found = reader.stand([each.bucket.text for each in own], asked.rates_declared)
    return {each.bucket: each.next_start_in for each in found}


def _changed(status: LimitStatus, bucket: Bucket, asked: Override, soonest: dict[Bucket, float]) -> LimitStatus:
    """Return how a limit would stand; what was said of one key comes before what is said of all."""
    if not _is_meant(status, bucket) or status.disabled:
        return status
    if asked.permits is not None and not _has_own(status, status.override, bucket):
        status = replace(status, in_force=asked.permits)
    if asked.rates and not _has_own(status, status.rate_override, bucket):
        said = Said(str(bucket), "", "", _EPOCH, None, rates=asked.rates)
        status = replace(status, rate_override=said, next_start_in=soonest[status.bucket])
    return status


def _has_own(status: LimitStatus, said: Said | None, bucket: Bucket) -> bool:
    """Whether a key has an override of its own, where the limit is meant."""
    return bucket.key is None and said is not None and status.scope(said) != bucket


def _too_many(status: LimitStatus) -> int:
    return 0 if status.in_force is None else max(status.held - status.in_force, 0)


def _least(parked: int, asked: Override) -> float | None:
    """Return how long the other rates need for so many starts."""
    if not parked or not asked.rates:
        return None
    return max(max(parked - each.burst, 0) / each.per_second for each in asked.rates)
