"""How limits and tasks stand: what the reading scripts answer, as values with names."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any

from celery_throttle.core.limits import shown
from celery_throttle.core.rates import Rate

__all__ = [
    "Ahead",
    "Holder",
    "LimitStatus",
    "Need",
    "Parked",
    "RateStatus",
    "Said",
    "TaskView",
    "holders",
    "parked",
    "statuses",
    "task_view",
]

_NONE = "", "", "", 0, "", "", 0, None, None


@dataclass(frozen=True)
class Said:
    """What somebody said of a limit at run time.

    Attributes:
        limit: of which one: its name, or ``name[key]`` if it was said of one key.
        by: who.
        why: in their words.
        since: when, by the store's clock.
        until: when it ends by itself, None if it does not.
        permits: of an override; of everything else None.
    """

    limit: str
    by: str
    why: str
    since: datetime
    until: datetime | None
    permits: int | None = None


@dataclass(frozen=True)
class RateStatus:
    """A declared rate: ``rate`` as text (``"100/m"``), and its ``burst``."""

    rate: str
    burst: int


@dataclass(frozen=True)
class LimitStatus:
    """How a limit stands, or one key of it.

    Attributes:
        name: of the limit.
        key: the value of its key; None for the limit itself, and for what all its keys have in common.
        permits: what the code declares; None: any number (a rate alone), or not declared in this store yet.
        rates: what the code declares.
        max_parked: how many may wait, None: any number.
        declared: whether a worker has declared it in this store.
        in_force: how many may run now, after overrides and ``disable``; None: any number.
        override: another number for now, if there is one.
        paused: nothing starts, if that was said.
        disabled: nothing of it is enforced, if that was said.
        held_back: nothing starts because the outside said that it is asked too often, if it did.
        held: permits held now; those of lost workers count until their lease ends.
        parked: how many wait in its line. A task that needs several limits waits in one line only.
        next_start_in: seconds until its rates allow the next start.
        barred_by: the task that goes before all newer ones, if one that needs several limits waited for long.
    """

    name: str
    key: str | None
    permits: int | None
    rates: tuple[RateStatus, ...]
    max_parked: int | None
    declared: bool
    in_force: int | None
    override: Said | None
    paused: Said | None
    disabled: Said | None
    held_back: Said | None
    held: int
    parked: int
    next_start_in: float
    barred_by: str | None
    barrier_ticket: str = field(default="", repr=False)

    def __str__(self) -> str:
        return shown(self.name if self.key is None else f"{self.name}\x1f{self.key}")

    @property
    def stopped(self) -> bool:
        """Whether nothing may start."""
        return self.paused is not None or self.held_back is not None

    @property
    def full(self) -> bool:
        """Whether as many run as may."""
        return self.in_force is not None and self.held >= self.in_force


@dataclass(frozen=True)
class Need:
    """So many permits of a limit, or of one key of it."""

    limit: str
    key: str | None
    permits: int

    def __str__(self) -> str:
        return shown(self.limit if self.key is None else f"{self.limit}\x1f{self.key}")


@dataclass(frozen=True)
class Holder:
    """A task that runs, or is about to.

    Attributes:
        task_id: of the task.
        needs: the permits it holds; none for one that only has an identity lock.
        worker: the id of its worker in this store.
        lease_left: seconds until its permits can be reclaimed unless its worker renews them; negative: overdue.
        queue: the queue it came from, None unless it was parked before.
        deliveries: how often it was started before, by workers that were lost.
    """

    task_id: str
    needs: tuple[Need, ...]
    worker: str
    lease_left: float
    queue: str | None
    deliveries: int


@dataclass(frozen=True)
class Parked:
    """A task that waits.

    Attributes:
        task_id: of the task.
        task_name: None if its message does not say, or is very large.
        limit: in whose line it is; None if it waits for its identity lock, or only for a slot to be told something.
        key: the value of the limit's key, if it has one.
        queue: the queue whose workers can start it; that of a permit outside of tasks begins with ``~``.
        place: in its line, 1 for the first.
        deliveries: how often it was started before, by workers that were lost.
    """

    task_id: str
    task_name: str | None
    limit: str | None
    key: str | None
    queue: str
    place: int
    deliveries: int


@dataclass(frozen=True)
class Ahead:
    """Those in a task's line that came before it, by queue.

    Attributes:
        queue: of theirs.
        count: how many.
        passed_over: whether that queue was offered a start, and no worker took it in time.
    """

    queue: str
    count: int
    passed_over: bool


@dataclass(frozen=True)
class TaskView:
    """All that the store knows of one task.

    Attributes:
        state: ``H`` holds, ``P`` parked, ``""`` unknown.
        counted: whether it holds, or waits for, permits.
        line: in which it is parked: a limit, ``""`` or that of an identity lock.
        expires: when it may not wait any longer.
        expires_now: it did not start in time, and a worker has to say so.
        settling: seconds for which nothing starts, because the store has just lost its data.
        lock: state, task id, since when (None: it has none) of whoever has the task's identity lock.
    """

    now: datetime
    state: str
    counted: bool
    line: str
    ticket: str
    queue: str
    deliveries: int
    nonce: str
    lease_left: float
    expires: datetime | None
    expires_now: bool
    task_name: str | None
    needs: tuple[Need, ...]
    limits: tuple[LimitStatus, ...]
    ahead: tuple[Ahead, ...]
    settling: float
    verdict: str
    lock: tuple[str, str, datetime] | None
    twin: bool


def statuses(raw: Any) -> tuple[LimitStatus, ...]:
    """Read the reply of status.lua."""
    now, rows = raw
    return tuple(_status(row, now) for row in rows)


def holders(raw: Any) -> tuple[tuple[Holder, ...], bool]:
    """Read the reply of holders.lua; whether there are more."""
    now, more, rows = raw
    return tuple(_holder(row, now) for row in rows), bool(more)


def parked(raw: Any) -> tuple[Parked, ...]:
    """Read the reply of parked.lua."""
    return tuple(_parked(*row) for row in raw)


def task_view(raw: Any) -> TaskView:
    """Read the reply of explain.lua."""
    now, settling, packed, lease_end, counted, line, head, lock, twin, queues, limits = raw
    record = [*json.loads(packed), None, None][:9] if packed else _NONE
    state, nonce, limit, _attempt, ticket, queue, deliveries, spec, more = record
    return TaskView(
        now=_when(now),
        state=state,
        counted=bool(counted),
        line=line.decode(),
        ticket=ticket,
        queue=queue,
        deliveries=deliveries,
        nonce=nonce,
        lease_left=(lease_end - now) / 1000,
        expires=_when(more["d"]) if more and "d" in more else None,
        expires_now=bool(more and "x" in more),
        task_name=_task_name(head),
        needs=_needs(limit, more),
        limits=tuple(_status(row, now) for row in limits),
        ahead=tuple(Ahead(name.decode(), count, _is_passed_over(offer, now)) for name, count, offer in queues),
        settling=settling / 1000,
        verdict=spec[6] if spec else "",
        lock=_lock(lock),
        twin=bool(twin),
    )


def _status(row: Any, now: int) -> LimitStatus:
    pool, declared, of_name, of_key, in_force, _closed, held, waiting, next_ms = row
    name, split, key = pool.decode().partition("\x1f")
    permits, rates, most = _declared(declared)
    # What was said of the key comes before what was said of all.
    said = [(scope, json.loads(packed)) for scope, packed in ((pool.decode(), of_key), (name, of_name)) if packed]

    def find(what: str) -> Any:
        return next(((scope, c[what]) for scope, c in said if what in c and not 0 < c[what][1] <= now), None)

    barrier = find("barrier")
    return LimitStatus(
        name=name,
        key=key if split else None,
        permits=permits,
        rates=rates,
        max_parked=most,
        declared=bool(declared),
        in_force=None if in_force < 0 else in_force,
        override=_said(find("override"), number=True),
        paused=_said(find("pause")),
        disabled=_said(find("disable")),
        held_back=_said(find("hold")),
        held=held,
        parked=waiting,
        next_start_in=next_ms / 1000,
        barred_by=barrier[1][2] if barrier else None,
        barrier_ticket=barrier[1][0] if barrier else "",
    )


def _declared(raw: bytes) -> tuple[int | None, tuple[RateStatus, ...], int | None]:
    if not raw:
        return None, (), None
    said = json.loads(raw)
    if isinstance(said, int):
        return said, (), None
    permits, rates, most = said
    read = tuple(RateStatus(str(Rate.of(int(count), int(period))), int(burst)) for count, period, burst in rates)
    return permits or None, read, most or None


def _said(found: Any, *, number: bool = False) -> Said | None:
    if found is None:
        return None
    scope, (value, until, by, why, since) = found
    permits = int(value) if number else None
    return Said(shown(scope), by, why, _when(since), _when(until) if until else None, permits)


def _needs(limit: str, more: Any) -> tuple[Need, ...]:
    needs: list[Any] = more["n"] if more and "n" in more else [[limit, 1]] if limit else []
    return tuple(Need(*_split(pool), cost) for pool, cost, *_ in needs)


def _holder(row: Any, now: int) -> Holder:
    task, packed, lease_end, counted = row
    _state, nonce, limit, _attempt, _ticket, queue, deliveries, *rest = json.loads(packed)
    needs = _needs(limit, rest[1] if len(rest) > 1 else None) if counted else ()
    worker = nonce.partition(":")[0]
    return Holder(task.decode(), needs, worker, (lease_end - now) / 1000, queue or None, deliveries)


def _parked(line: bytes, place: int, task: bytes, packed: bytes, head: bytes) -> Parked:
    queue, deliveries = json.loads(packed)[5:7] if packed else ("", 0)
    of_limit = line and line[:1] not in (b"\2", b"\3")  # nor of an identity lock
    limit, key = _split(line.decode()) if of_limit else (None, None)
    return Parked(task.decode(), _task_name(head), limit, key, queue, place, deliveries)


def _split(pool: str) -> tuple[str, str | None]:
    name, split, key = pool.partition("\x1f")
    return name, key if split else None


def _task_name(head: bytes) -> str | None:
    try:
        name = json.loads(head)["headers"]["task"]
    except (ValueError, KeyError, TypeError):
        return None
    return name if isinstance(name, str) else None


def _is_passed_over(offer: bytes, now: int) -> bool:
    if not offer:
        return False
    till, passed = map(int, offer.split())
    return till <= now < till + passed


def _lock(raw: bytes) -> tuple[str, str, datetime] | None:
    if not raw:
        return None
    state, task, _claim, _nonce, _fence, since, *_ = json.loads(raw)
    return state, task, _when(since)


def _when(milliseconds: float) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)
