"""What another number of permits, or another rate, would do: how many start now, and what keeps the others.

Played through on what the store has, as the gate would do it: in order, a line stops at the first that its own limit
refuses, and who is refused by another limit goes to the line of that one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Literal

from celery_throttle.control.capacity import asked_workers, slots_for, starts_per_second
from celery_throttle.control.overrides import Override
from celery_throttle.control.pace import Pace, pace_in
from celery_throttle.control.play import Play
from celery_throttle.control.queues import NOBODY_ANSWERED
from celery_throttle.control.reader import MOST
from celery_throttle.control.taking_back import TakingBack, without
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.naming import is_outside
from celery_throttle.core.wording import counted, often, one_line, span
from celery_throttle.store.limit_status import Said, rates_text

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.control.reader import Reader
    from celery_throttle.store.limit_status import LimitStatus, RateStatus

__all__ = ["Bound", "Forecast", "forecast"]

#: What is so after a change that ends another one, and where there is nothing to end.
_ENDED: dict[str, str] = {
    "resume": "not paused any more",
    "enable": "enforced again",
    "release-hold": "not held back any more",
}
_NOTHING: dict[str, str] = {
    "reset": "not overridden, nothing would change",
    "resume": "not paused, nothing would change",
    "enable": "not disabled, nothing would change",
    "release-hold": "not held back, nothing would change",
}
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
        after: which change ends another one; "": it is an override.
        changes: whether anything would change.
        slots: how many of those that would start have a free slot of a live worker; None if that is not known.
        per_second: about how many would start each second from then on, where ``after`` is given and that is known.
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
    after: TakingBack | Literal[""] = ""
    changes: bool = True
    slots: int | None = None
    per_second: float | None = None

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{one_line(str(Bucket(self.limit, self.key)))}: {', '.join(self._changes())}."
        if self.drains:
            yield f"{self.drains} more run than may then: none starts in their place until they have ended."
        yield self._starts()
        if self.per_second is not None:
            yield f"About {often(self.per_second)} would start from then on."
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

    def _starts(self) -> str:
        starts = ("At most " if self.at_most else "") + counted(self.starts, "task")
        if not self.starts:
            return f"{starts} would start at once."
        if self.slots is None:
            return f"{starts} would start at once, if workers have slots for them."
        if self.slots >= self.starts:
            return f"{starts} would start at once, workers have slots for them."
        return f"{starts} would start as workers have slots for them, {self.slots} of them at once."

    def _changes(self) -> Iterator[str]:
        if self.after and not self.changes:
            yield _NOTHING[self.after]
            return
        if self.after in _ENDED:
            yield _ENDED[self.after]
        if self.permits != self.permits_before or (self.rates == self.rates_before and not self.after):
            before = "any number" if self.permits_before is None else str(self.permits_before)
            number = "any number of permits" if self.permits is None else counted(self.permits, "permit")
            yield f"{number} instead of {before}"
        if self.rates != self.rates_before:
            yield f"rate {rates_text(self.rates) or 'none'} instead of {rates_text(self.rates_before) or 'none'}"


def forecast(reader: Reader, bucket: Bucket, asked: Override | TakingBack) -> Forecast:
    """Say what an override of a limit (with all its keys), or of one key, would do, or the end of one."""
    waiters = reader.waiters(bucket, MOST)
    needed = {need.bucket for each in waiters for need in each.needs}
    others = {each: reader.waiters(each, 1) for each in sorted(needed - {each.line for each in waiters}, key=str)}
    wanted = {bucket, Bucket(bucket.name), *needed}
    stands = {each.bucket: each for each in reader.stand([each.text for each in sorted(wanted, key=str)])}
    own = [each for each in stands.values() if _is_meant(each, bucket)]
    before, after = stands[bucket], _after(reader, bucket, asked, stands, own)
    unchecked: list[str] = []
    change: TakingBack | Literal[""]
    parked = before.parked_in_all
    # What workers of other brokers consume cannot be asked by this app's remote control.
    queues = {each.queue for each in waiters if not is_outside(each.queue.name) and reader.is_ours(each.queue.broker)}
    taken, workers = asked_workers(reader.app) if queues else (set(), None)
    if taken is None:
        unchecked.append(NOBODY_ANSWERED)
    if reader.clock()[1]:
        unchecked.append("What is held: the store has just lost its data, and workers put it back.")
    firsts = {each: first[0].place(each) for each, first in others.items() if first and first[0].line == each}
    dead = set() if taken is None else {each for each in queues if each.name not in taken}
    play = Play(dict(after), firsts, dead)
    play.run(waiters)
    changed = [after[each.bucket] for each in own]
    override, change = (asked, "") if isinstance(asked, Override) else (Override(), asked)
    paces = parked and bucket.key is None and not change and not override.rates
    pace = pace_in(reader, before) if paces else Pace()
    return Forecast(
        bucket.name,
        bucket.key,
        after[bucket].in_force if override.permits is None else override.permits,
        before.in_force,
        play.starts.total(),
        play.at_most,
        sum(_too_many(after[each.bucket]) for each in own if _has_less(asked, each, after[each.bucket])),
        tuple(Bound(why, count, *where) for (why, *where), count in play.bounds.items()),
        len(waiters),
        parked,
        tuple(unchecked),
        pace.starts_in(parked),
        override.rates or after[bucket].rates_in_force,
        before.rates_in_force,
        _least(parked, override) if bucket.key is not None or not any(each.key for each in own) else None,
        change,
        changed != own,
        slots_for(play.starts, workers, reader),
        starts_per_second(reader, waiters, changed, workers) if change else None,
    )


def _after(
    reader: Reader,
    bucket: Bucket,
    asked: Override | TakingBack,
    stands: dict[Bucket, LimitStatus],
    own: list[LimitStatus],
) -> dict[Bucket, LimitStatus]:
    """Return how the limits would stand."""
    if not isinstance(asked, Override):
        return without(reader, bucket, asked, stands)
    soonest = _soonest(reader, own, asked)
    return {each.bucket: _changed(each, bucket, asked, soonest) for each in stands.values()}


def _has_less(asked: Override | TakingBack, before: LimitStatus, after: LimitStatus) -> bool:
    """Whether this change is what lets fewer run."""
    if isinstance(asked, Override):
        return after.in_force == asked.permits
    return after.in_force != before.in_force


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
