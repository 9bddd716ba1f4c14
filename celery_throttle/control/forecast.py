"""Forecast a change of a limit: the number of tasks that start, and the reasons why the others wait.

The forecast simulates the gate on the data of the store. Tasks start in order. A line stops at the first task that its
own limit refuses. A task that another limit refuses goes to the line of that limit.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import inf
from typing import TYPE_CHECKING, Any, Literal

from celery_throttle.control.overrides import Numbers, status_after
from celery_throttle.control.pace import ENOUGH_RUNS, Pace, pace_in
from celery_throttle.control.play import Bound, Play
from celery_throttle.control.queues import NO_ANSWER, Slots, consumed, free_slots
from celery_throttle.control.reader import MOST
from celery_throttle.control.verbs import VERBS
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.history import MINUTES
from celery_throttle.core.naming import is_outside
from celery_throttle.core.wording import counted, often, one_line, span
from celery_throttle.store.limit_status import rates_text, starts_per_second

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterator

    from celery_throttle.control.reader import Reader
    from celery_throttle.control.verbs import Ending
    from celery_throttle.core.queues import BrokerQueue
    from celery_throttle.store.limit_status import LimitStatus, RateStatus
    from celery_throttle.store.parked_tasks import Waiter

__all__ = ["Forecast", "forecast"]


@dataclass(frozen=True)
class Forecast:
    """The effect of other permits, another rate, or the end of a runtime override.

    Attributes:
        limit: the name of the limit.
        key: the value of the limit's key, None for the limit with all its keys.
        permits: the permits after the change; of a limit with keys, for each key; None: any number.
        permits_before: the permits in force now; None: any number.
        starts: the number of tasks that would start at once, if workers have slots for them.
        at_most: whether a rate may let fewer of them start.
        drains: the number of runs above the new limit; while there are any, no task starts.
        bounds: the reasons why other tasks would wait, in the order of the simulation.
        looked_at: the number of parked tasks that were simulated, from the heads of the lines.
        parked: the number of parked tasks in the limit's lines, or in other lines with need of its permits.
        gone_in: the estimated seconds until the line is empty at its present pace; None if the line does not move, no
            task waits, or the rate would change.
        unchecked: a sentence for each part that could not be checked.
        rates: the rates after the change; empty: none.
        rates_before: the rates in force now.
        least: the least seconds until the line is empty with the new rate; None if no task waits, the rate stays, or
            the limit has keys.
        after: the change that ends another one; "" for an override.
        changes: whether the change has an effect.
        slots: the number of starts for which a live worker has a free slot; None if it is not known.
        per_second: the estimated starts a second after the change, with ``after`` only; None if it is not known.
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
    after: Ending | Literal[""] = ""
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
            yield "No task would wait for it any longer." if self.starts else "No task waits for it."
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
            yield f"not {VERBS[self.after].state}, nothing would change"
            return
        if self.after and self.after != "reset":
            yield f"not {VERBS[self.after].state} any more"
        if self.permits != self.permits_before or (self.rates == self.rates_before and not self.after):
            before = "any number" if self.permits_before is None else str(self.permits_before)
            number = "any number of permits" if self.permits is None else counted(self.permits, "permit")
            yield f"{number} instead of {before}"
        if self.rates != self.rates_before:
            yield f"rate {rates_text(self.rates) or 'none'} instead of {rates_text(self.rates_before) or 'none'}"


def forecast(reader: Reader, bucket: Bucket, asked: Numbers | Ending) -> Forecast:
    """Return the effect of a change: an override of a limit (with all its keys) or of one key, or the end of one."""
    waiters = reader.waiters(bucket, MOST)
    needed = {need.bucket for each in waiters for need in each.needs}
    others = {each: reader.waiters(each, 1) for each in sorted(needed - {each.line for each in waiters}, key=str)}
    wanted = {bucket, Bucket(bucket.name), *needed}
    stands = {each.bucket: each for each in reader.stand([each.text for each in sorted(wanted, key=str)])}
    own = [each for each in stands.values() if bucket.includes(each.bucket)]
    before, after = stands[bucket], status_after(reader, bucket, asked, stands)
    unchecked: list[str] = []
    change: Ending | Literal[""]
    parked = before.parked_in_all
    # The remote control of this app does not reach the workers of other brokers.
    queues = {each.queue for each in waiters if not is_outside(each.queue.name) and reader.is_ours(each.queue.broker)}
    taken, workers = _asked_workers(reader.app) if queues else (set(), None)
    if taken is None:
        unchecked.append(NO_ANSWER)
    if reader.clock()[1]:
        unchecked.append("The holders: the store has just lost its data, and workers put them back.")
    if sites := sorted({each.kind for each in needed if each.is_open}):
        unchecked.append(f"Permits on each {' and '.join(sites)}: how many are free there was not looked at.")
    firsts = {each: first[0].place(each) for each, first in others.items() if first and first[0].line == each}
    dead = set() if taken is None else {each for each in queues if each.name not in taken}
    play = Play(dict(after), firsts, dead)
    play.run(waiters)
    changed = [after[each.bucket] for each in own]
    override, change = (asked, "") if isinstance(asked, Numbers) else (Numbers(), asked)
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
        tuple(replace(each, tasks=count) for each, count in play.bounds.items()),
        len(waiters),
        parked,
        tuple(unchecked),
        pace.starts_in(parked),
        override.rates or after[bucket].rates_in_force,
        before.rates_in_force,
        _least(parked, override) if bucket.key is not None or not any(each.key for each in own) else None,
        change,
        changed != own,
        _slots_for(play.starts, workers, reader),
        _pace_after(reader, waiters, changed, workers) if change else None,
    )


def _has_less(asked: Numbers | Ending, before: LimitStatus, after: LimitStatus) -> bool:
    """Return whether this change reduces the permits in force."""
    if isinstance(asked, Numbers):
        return after.in_force == asked.permits
    return after.in_force != before.in_force


def _too_many(status: LimitStatus) -> int:
    return 0 if status.in_force is None else max(status.held - status.in_force, 0)


def _least(parked: int, asked: Numbers) -> float | None:
    """Return the seconds that the other rates need for ``parked`` starts."""
    if not parked or not asked.rates:
        return None
    return max(max(parked - each.burst, 0) / each.per_second for each in asked.rates)


def _asked_workers(app: Any) -> tuple[set[str] | None, list[Slots] | None]:
    """Return the queues that the workers consume, and their free slots.

    Both requests run at the same time, because each takes a second.
    """
    with ThreadPoolExecutor(1, "celery-throttle-slots") as pool:
        slots = pool.submit(free_slots, app)
        return consumed(app), slots.result()


def _slots_for(starts: Counter[BrokerQueue], workers: list[Slots] | None, reader: Reader) -> int | None:
    """Return how many of these starts (by queue) have a free slot now; None if that is not known.

    Permits outside of tasks need no slot. Workers of other brokers cannot be asked.
    """
    outside = sum(count for queue, count in starts.items() if is_outside(queue.name))
    left = {queue.name: count for queue, count in starts.items() if not is_outside(queue.name)}
    if not left:
        return outside
    if workers is None or not all(is_outside(each.name) or reader.is_ours(each.broker) for each in starts):
        return None
    found = outside
    for worker in sorted(workers, key=lambda each: len(each.queues & left.keys())):
        free = worker.free
        for queue in sorted(worker.queues & left.keys(), key=lambda each: -left[each]):
            taken = min(free, left[queue])
            free, left[queue], found = free - taken, left[queue] - taken, found + taken
    return found


def _pace_after(
    reader: Reader, waiters: list[Waiter], own: list[LimitStatus], workers: list[Slots] | None
) -> float | None:
    """Return the estimated starts a second, by rates, permits, slots and past run times; None: not known."""
    lines = [each for each in own if each.parked and not each.stopped]
    if not lines:
        return None
    by_rate = sum(starts_per_second(each.rates_in_force) for each in lines)
    runs = sum(inf if each.in_force is None else each.in_force for each in lines)
    if len(waiters) >= MOST and len(lines) > 1:  # not all keys were read
        by_rate = runs = inf
    queues = {each.queue.name for each in waiters}
    if workers is not None:
        slots = sum(each.free for each in workers if each.queues & queues)
        runs = min(runs, slots + own[0].held_in_all)
    costs = [need.permits for each in waiters for need in each.needs if need.limit == own[0].name]
    history = reader.histories([own[0].name], MINUTES)[0]
    if history.run_time and history.ended >= ENOUGH_RUNS and costs:
        by_rate = min(by_rate, runs / history.run_time / (sum(costs) / len(costs)))
    return by_rate if 0 < by_rate < inf else None
