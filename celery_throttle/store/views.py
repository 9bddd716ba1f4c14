"""How limits and tasks stand: what the reading scripts answer, as values with names."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timezone
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar

from celery_throttle.core.buckets import Bucket
from celery_throttle.core.limits import described
from celery_throttle.core.policy import costs_of
from celery_throttle.core.queues import BrokerQueue
from celery_throttle.core.rates import Rate
from celery_throttle.core.task_codes import TaskNames
from celery_throttle.store.heads import read_head, task_name_in
from celery_throttle.store.rows import (
    Change,
    Holder,
    LimitStatus,
    LockStatus,
    Need,
    Parked,
    RateStatus,
    Said,
    SetAside,
    Wrong,
    needs_from,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = [
    "Ahead",
    "Declared",
    "First",
    "Lent",
    "LostRun",
    "Oldest",
    "ParkedId",
    "ParkedInQueue",
    "Service",
    "TaskView",
    "Waiter",
    "changes",
    "declared",
    "firsts",
    "holders",
    "lent",
    "locks",
    "lost_runs",
    "names",
    "oldest",
    "parked",
    "parked_by_queue",
    "parked_ids",
    "parked_rows",
    "services",
    "set_aside",
    "statuses",
    "task_view",
    "text",
    "waiters",
    "wrong",
]


T = TypeVar("T")

#: Keys of the store whose fields are no limits, and no keys of limits.
_OF_TASKS = {"records", "messages", "locks", "workers"}
#: A ticket is when a task came, in tenths of ms; of one that goes before all others it is less by this (facts.lua).
_TICKS, _BEFORE_ALL = 10_000, 100_000_000_000_000
#: What the lines of those who wait for an identity lock begin with.
_LOCK_LINES = (b"follow:", b"next:")
_NO_NAMES = TaskNames({})
#: What reading a stored value may raise that somebody else has written.
_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
#: As far as times can be shown.
_LAST_MS = 253_370_764_800_000
#: What makes the text of a ticket sort as its number (records.lua).
_NOUGHT = 10**15


@dataclass(frozen=True)
class Ahead:
    """Those in a task's line that came before it, by queue.

    Attributes:
        queue: the name of their queue.
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
        state: ``held``, ``parked`` or ``""``: unknown.
        counted: whether it holds, or waits for, permits.
        line: in which it is parked: a bucket, ``""`` or that of an identity lock.
        broker: the code of its queue's broker.
        service: the description of that broker if it is not the app's own; else "".
        expires: when it may not wait any longer.
        expires_now: it did not start in time, or was dropped, and a worker has to say so.
        dropped: by whom it was dropped, "" if it was not.
        dropped_at: when it was.
        lent: whether its message is on the way to its queue.
        settling: seconds for which nothing starts, because the store has just lost its data.
        lock: state, task id, since when (None: it has none) of whoever has the task's identity lock.
        args: the positional arguments as text, cut; None if the store has no message with such a text.
        kwargs: the arguments by name, alike.
        eta: before which it must not start, None if its message has none, or is not in the store.
    """

    now: datetime
    state: str
    counted: bool
    line: str
    ticket: float
    queue: str
    broker: str
    deliveries: int
    nonce: str
    lease_left: float
    expires: datetime | None
    expires_now: bool
    dropped: str
    lent: bool
    task_name: str | None
    needs: tuple[Need, ...]
    limits: tuple[LimitStatus, ...]
    ahead: tuple[Ahead, ...]
    settling: float
    verdict: str
    lock: tuple[str, str, datetime] | None
    second: bool
    aside: str
    service: str = ""
    dropped_at: datetime | None = None
    args: str | None = field(default=None, repr=False)
    kwargs: str | None = field(default=None, repr=False)
    eta: datetime | None = None


def statuses(raw: Any) -> tuple[LimitStatus, ...]:
    """Read the reply of status.lua."""
    now, rows = raw
    return _statuses(rows, now)


def holders(raw: Any, names: TaskNames = _NO_NAMES) -> tuple[tuple[Holder, ...], bool]:
    """Read the reply of holders.lua; whether there are more. ``names`` are of the tasks that are known."""
    now, more, rows = raw
    return tuple(_readable(lambda row: _holder(row, now, names), rows)), bool(more)


def parked_rows(raw: Any) -> tuple[bytes, list[Any]]:
    """Read the reply of parked.lua: where to go on, and a page of rows, for `parked` and `waiters`."""
    after, rows = raw
    return after, rows


def parked(rows: Iterable[Any]) -> tuple[Parked, ...]:
    """Return what rows of parked.lua say."""
    return tuple(_parked(*row) for row in rows)


class Waiter(NamedTuple):
    """A parked task in the line of a limit, and what it takes to start it; ``turns``: where its place is ``turn``."""

    task: str
    line: Bucket
    queue: BrokerQueue
    ticket: float
    needs: tuple[Need, ...]
    turns: Bucket | None
    turn: float

    def place(self, bucket: Bucket) -> float:
        """Return its place in the line of a bucket."""
        return self.turn if bucket == self.turns else self.ticket


def waiters(rows: Iterable[Any]) -> list[Waiter]:
    """Return what rows of parked.lua say, but for those who wait for a lock, and what nobody can read."""
    found = []
    for line, _, task, packed, _ in rows:
        if line.startswith(_LOCK_LINES):
            continue
        try:
            record = json.loads(packed)
            # Who is in no limit's line waits for a slot alone, also if it is only to be told that it does not run.
            needs = needs_from(record["needs"]) if line else ()
            ticket, queue = float(record["ticket"]), BrokerQueue.parse(str(record["queue"]))
            turns = Bucket.parse(record["turn"][0]) if "turn" in record else None
            turn = float(record.get("place", ticket))
        except _UNREADABLE:  # it is set aside when its turn comes
            continue
        found.append(Waiter(text(task), Bucket.parse(text(line)), queue, ticket, needs, turns, turn))
    return found


class First(NamedTuple):
    """Who is first in a line, and when they came."""

    task_id: str
    since: datetime | None


def firsts(raw: Any) -> list[First | None]:
    """Read the reply of firsts.lua."""
    return [First(text(row[0]), _came(int(row[1]) - _NOUGHT)) if row else None for row in raw]


class Oldest(NamedTuple):
    """The parked task of a limit that waits for longest, and the line in which it is."""

    bucket: Bucket
    first: First


def oldest(raw: Any) -> list[Oldest | None]:
    """Read the reply of oldest.lua."""
    firsts_of_rows = firsts([row[1:] for row in raw])
    return [
        Oldest(Bucket.parse(text(row[0])), first) if first else None
        for row, first in zip(raw, firsts_of_rows, strict=True)
    ]


class ParkedId(NamedTuple):
    """A parked task; ``what``: it ``runs`` in its turn, ``waits`` for another's lock, or is only to be ``told``."""

    ticket: str
    task: str
    queue: BrokerQueue
    what: str

    @property
    def since(self) -> datetime | None:
        """When it came."""
        return _came(int(self.ticket) - _NOUGHT)


def parked_ids(raw: Any) -> tuple[str, list[ParkedId]]:
    """Read the reply of parked_ids.lua: where to go on, and a page."""
    after, rows = raw
    return text(after), [
        ParkedId(text(ticket), text(task), BrokerQueue.parse(text(queue)), text(what))
        for task, ticket, queue, what in rows
    ]


class ParkedInQueue(NamedTuple):
    """Parked tasks of a queue, and when the first of them came."""

    queue: BrokerQueue
    tasks: int
    since: datetime | None

    def and_also(self, other: ParkedInQueue) -> ParkedInQueue:
        """Return these and those together."""
        times = [each.since for each in (self, other) if each.since]
        return ParkedInQueue(self.queue, self.tasks + other.tasks, min(times, default=None))


def parked_by_queue(raw: Any) -> tuple[str, list[ParkedInQueue]]:
    """Read the reply of parked_by_queue.lua: where to go on, and a page."""
    after, rows = raw
    return text(after), [
        ParkedInQueue(BrokerQueue.parse(text(queue)), count, _came(int(ticket) - _NOUGHT))
        for queue, count, ticket in rows
    ]


class Lent(NamedTuple):
    """A parked task whose message is to be published again."""

    task: str
    queue: BrokerQueue
    message: bytes


def lent(raw: Any) -> tuple[int, list[Lent]]:
    """Read the reply of unpark.lua: how many tasks were looked at, and those that were lent out."""
    looked_at, rows = raw
    return looked_at, [Lent(text(task), BrokerQueue.parse(text(queue)), message) for task, queue, message in rows]


class Declared(NamedTuple):
    """What a worker has declared.

    Attributes:
        worker: its name.
        seconds: since it called last; None if it has not called, or has left.
        limits: what it declares of each limit, see `Limit.declared`.
    """

    worker: str
    seconds: float | None
    limits: dict[str, str]


def declared(raw: Any) -> tuple[str, list[Declared]]:
    """Read the reply of declared.lua: where to go on, and a page."""
    now, after, rows, texts = raw
    limits = [_limits(each) for each in texts]
    return text(after), [
        Declared(text(name), (now - since) / 1000 if since else None, limits[number - 1])
        for name, since, number in rows
    ]


def _limits(raw: bytes) -> dict[str, str]:
    """Return what is declared of each limit, without what was not written by a worker."""
    try:
        found = json.loads(raw)
        return {name: each for name, each in found.items() if isinstance(each, str) and described(each)}
    except _UNREADABLE:
        return {}


class LostRun(NamedTuple):
    """A run of a task that runs once, whose lease has ended and which may go on.

    Attributes:
        task: its id.
        worker: on which it ran.
        nonce: of the delivery.
        since: when its lease was renewed last.
        heard: when its worker tried to renew it since; None if it has not.
        lock: state, task, since when and nonce of what has the identity lock now; None: it is free.
    """

    task: str
    worker: str
    nonce: str
    since: datetime
    heard: datetime | None
    lock: tuple[str, str, datetime, str] | None

    @property
    def twice(self) -> bool:
        """Whether another run has the identity lock."""
        return self.lock is not None and self.lock[0] == "running" and self.lock[3] != self.nonce


def lost_runs(raw: Any) -> tuple[str, list[LostRun]]:
    """Read the reply of lost.lua: where to go on, and a page."""
    after, rows = raw
    found = [
        LostRun(
            run["task"],
            text(worker),
            run["nonce"],
            _when(run["renewed"]),
            _when(run["called"]) if run["called"] else None,
            _lock_with_nonce(lock),
        )
        for worker, runs, locks in rows
        for run, lock in zip(json.loads(runs), locks, strict=True)
    ]
    return text(after), found


def _lock_with_nonce(raw: bytes) -> tuple[str, str, datetime, str] | None:
    lock = _lock(raw)
    return (*lock, json.loads(raw).get("nonce", "")) if lock else None


class Service(NamedTuple):
    """A broker whose workers use this store.

    Attributes:
        code: what its queues begin with in the store.
        broker: its description, or what ``throttle_broker`` names it.
        workers: how many workers of it called within the last minutes.
        seconds: since one of them called last; None if none has within a day.
    """

    code: str
    broker: str
    workers: int
    seconds: float | None


def services(raw: Any) -> list[Service]:
    """Read the reply of services.lua."""
    now, rows = raw
    return sorted(
        (
            Service(text(code), broker.decode(errors="replace"), workers, (now - last) / 1000 if last else None)
            for code, broker, workers, last in rows
        ),
        key=lambda each: (each.broker, each.code),
    )


def locks(raw: Any) -> tuple[str, list[LockStatus]]:
    """Read the reply of locks.lua: where to go on, and a page."""
    after, rows = raw
    return text(after), list(_readable(lambda row: _lock_status(*row), rows))


def wrong(raw: Any) -> tuple[str, list[Wrong]]:
    """Read the reply of mend.lua: where to go on, and a page."""
    after, rows = raw
    return text(after), [Wrong(text(key), _field(text(key), text(field)), text(why)) for key, field, why in rows]


def _field(key: str, field: str) -> str:
    """Return a field as people read it: a key of a limit as ``tenant[acme]``."""
    return field if key in _OF_TASKS else str(Bucket.parse(field))


def set_aside(raw: Any) -> tuple[SetAside, ...]:
    """Read the reply of unreadable.lua."""
    return tuple(_aside(text(name), packed) for name, packed in raw)


def _aside(name: str, packed: bytes) -> SetAside:
    try:
        kept = json.loads(packed.decode(errors="replace"))
        why, since, record = str(kept["why"]), _when(kept["since"]), str(kept["record"])
    except _UNREADABLE:
        why, since, record = "not readable any more", _when(0), packed.decode(errors="replace")
    key, other, field = name.partition("\0")
    if other:
        return SetAside("", why, since, record, key, _field(key, field))
    return SetAside(name, why, since, record, field=name)


def changes(raw: Any) -> tuple[Change, ...]:
    """Read the reply of audit.lua; newest first."""
    return tuple(_readable(lambda packed: _change(json.loads(packed)), reversed(raw)))


def _readable(make: Callable[[Any], T], rows: Iterable[Any]) -> Iterator[T]:
    """Yield what is made of those rows that can be read."""
    for row in rows:
        try:
            yield make(row)
        except _UNREADABLE:
            continue


def names(raw: Any) -> tuple[str, list[str]]:
    """Read the reply of limits.lua: where to go on, and a page of names."""
    after, found = raw
    return text(after), [text(name) for name in found]


def task_view(raw: Any, names: TaskNames = _NO_NAMES) -> TaskView:
    """Read the reply of explain.lua. ``names`` are of the tasks that are known, for one whose message is gone."""
    now, settling, packed, lease_end, line, head, lock, second, queues, limits, aside = raw
    record: dict[str, Any] = json.loads(packed) if packed else {}
    plan, deadline = record.get("lock"), record.get("deadline")
    runs = not record.get("expired") and not record.get("lent") and (not plan or plan["verdict"] == "run")
    queue, about = BrokerQueue.parse(record.get("queue", "")), read_head(head)
    return TaskView(
        now=_when(now),
        state="" if not record else "held" if "nonce" in record else "parked",
        counted=bool(runs and record.get("needs")),
        line=text(line),
        ticket=record.get("ticket", 0),
        queue=queue.name,
        broker=queue.broker,
        deliveries=record.get("deliveries", 0),
        nonce=record.get("nonce", ""),
        lease_left=(lease_end - now) / 1000,
        expires=_when(deadline) if deadline else None,
        expires_now=bool(record.get("expired")),
        dropped=record.get("dropped", ""),
        lent=bool(record.get("lent")),
        task_name=about.task_name or _name_of(record, names),
        needs=needs_from(record.get("needs", "")),
        limits=_statuses(limits, now),
        ahead=tuple(Ahead(BrokerQueue.parse(text(name)).name, count, passed > now) for name, count, passed in queues),
        settling=settling / 1000,
        verdict=plan["verdict"] if plan else "",
        lock=_lock(lock),
        second=bool(second),
        aside=text(aside),
        dropped_at=_when(record["dropped_at"]) if "dropped_at" in record else None,
        args=about.args,
        kwargs=about.kwargs,
        eta=about.eta,
    )


def _statuses(rows: bytes, now: int) -> tuple[LimitStatus, ...]:
    return tuple(_status(now, *row) for row in json.loads(rows.decode("utf-8", "surrogatepass")))


def _status(
    now: int,
    text_of_bucket: str,
    declared: str,
    of_limit: str,
    of_bucket: str,
    in_force: int,
    held: int,
    parked: int,
    next_start_ms: float,
    keys: int = 0,
    held_of_keys: int = 0,
    parked_of_keys: int = 0,
) -> LimitStatus:
    bucket = Bucket.parse(text_of_bucket)
    permits, rates, most = _declared(declared)
    said: dict[str, Any] = {}
    # What was said of the key comes before what was said of all.
    for scope, packed in ((Bucket(bucket.name), of_limit), (bucket, of_bucket)) if of_limit or of_bucket else ():
        spoken = json.loads(packed) if packed else {}
        said |= {what: (scope, one) for what, one in spoken.items() if not 0 < one[1] <= now}
    bar = said.get("bar")
    return LimitStatus(
        name=bucket.name,
        key=bucket.key,
        permits=permits,
        rates=rates,
        max_parked=most,
        declared=bool(declared),
        in_force=None if in_force < 0 else in_force,
        override=_said(said.get("override"), "permits"),
        paused=_said(said.get("pause")),
        disabled=_said(said.get("disable")),
        held_back=_said(said.get("hold")),
        held=held,
        parked=parked,
        next_start_in=next_start_ms / 1000,
        barred_by=bar[1][3] if bar else None,
        bar_ticket=bar[1][0] if bar else 0,
        rate_override=_said(said.get("rate"), "rates"),
        keys=keys,
        held_of_keys=held_of_keys,
        parked_of_keys=parked_of_keys,
    )


@lru_cache(maxsize=1024)  # all keys of a limit have the same
def _declared(raw: str) -> tuple[int | None, tuple[RateStatus, ...], int | None]:
    if not raw:
        return None, (), None
    said = json.loads(raw)
    if isinstance(said, int):
        return said, (), None
    return said["permits"] or None, _rates(said.get("rates", ())), said.get("max_parked")


def _rates(declared: Any) -> tuple[RateStatus, ...]:
    return tuple(
        RateStatus(str(Rate.of(int(count), int(period))), int(burst)) for count, period, burst in declared or ()
    )


def _said(found: Any, value_is: Literal["", "permits", "rates", "both"] = "") -> Said | None:
    """Read what was said, as runtime_overrides.lua has it, and of what; ``both``: of permits, with the rates behind."""
    if found is None:
        return None
    scope, (value, until, by, why, since, *behind) = found
    permits = int(value) if value_is in ("permits", "both") and value else None
    rates = _rates(value if value_is == "rates" else behind[0] if behind else ())
    return Said(str(scope), by, why, _when(since), _when(until) if until else None, permits, rates)


def _change(told: dict[str, Any]) -> Change:
    bucket = Bucket.parse(told["bucket"]) if "bucket" in told else None

    def said(when: str) -> Said | None:
        found = (bucket, told[when]) if when in told else None
        return _said(found, "both" if told["action"] in ("override", "reset") else "")

    return Change(
        _when(told["at"]),
        told["action"],
        told["by"],
        told["why"],
        bucket.name if bucket else None,
        bucket.key if bucket else None,
        said("before"),
        said("after"),
        _permits(told.get("permits_before")),
        _permits(told.get("permits_after")),
        told.get("task"),
        told.get("name") or None,
        told.get("tasks", 0),
        _rates(told.get("rates_before")),
        _rates(told.get("rates_after")),
    )


def _permits(number: int | None) -> int | None:
    return None if number is None or number < 0 else number


def _lock_status(identity: bytes, packed: bytes, left: int, head: bytes) -> LockStatus:
    lock = json.loads(packed)
    return LockStatus(
        text(identity),
        lock["task"],
        task_name_in(head),
        lock["state"],
        _when(lock["since"]),
        left / 1000,
        int(lock["fence"]),
        lock["nonce"].partition(":")[0] if lock["state"] == "running" and "nonce" in lock else None,
        lock.get("next"),
    )


def _name_of(record: Any, names: TaskNames) -> str | None:
    buckets = [bucket for bucket, _ in costs_of(record.get("needs", ""))]
    return names.find(record.get("code", ""), buckets, record.get("queue", ""))


def _holder(row: Any, now: int, names: TaskNames) -> Holder:
    task, packed, lease_end = row
    record = json.loads(packed)
    plan = record.get("lock")
    holds = not record.get("expired") and not record.get("lent") and (not plan or plan["verdict"] == "run")
    queue = BrokerQueue.parse(record["queue"])
    return Holder(
        text(task),
        needs_from(record["needs"]) if holds else (),
        record["nonce"].partition(":")[0],
        (lease_end - now) / 1000,
        queue.name or None,
        record.get("deliveries", 0),
        _when(record["since"]),
        _name_of(record, names),
        queue.broker,
    )


def _parked(line: bytes, place: int, task: bytes, packed: bytes, head: bytes) -> Parked:
    try:
        record = json.loads(packed) if packed else {}
    except _UNREADABLE:
        record = {}
    if not isinstance(record, dict):  # it is set aside when its turn comes
        record = {}
    bucket = Bucket.parse(text(line)) if line and not line.startswith(_LOCK_LINES) else None
    queue = BrokerQueue.parse(str(record.get("queue", "")))
    return Parked(
        text(task),
        task_name_in(head),
        bucket.name if bucket else None,
        bucket.key if bucket else None,
        queue.name,
        place,
        record.get("deliveries", 0),
        _came(record.get("ticket")),
        queue.broker,
    )


def _lock(raw: bytes) -> tuple[str, str, datetime] | None:
    if not raw:
        return None
    lock = json.loads(raw)
    return lock["state"], lock["task"], _when(lock["since"])


def _came(ticket: Any) -> datetime | None:
    try:
        return datetime.fromtimestamp((ticket + _BEFORE_ALL if ticket < 0 else ticket) / _TICKS, timezone.utc)
    except (TypeError, ValueError, OverflowError, OSError):  # nobody can read it
        return None


def _when(milliseconds: float) -> datetime:
    return datetime.fromtimestamp(min(max(milliseconds, 0), _LAST_MS) / 1000, timezone.utc)


def text(raw: bytes) -> str:
    """Return a name that was stored, also if somebody else has stored it."""
    return raw.decode(errors="replace")
