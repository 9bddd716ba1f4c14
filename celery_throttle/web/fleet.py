"""The workers, the queues with parked tasks, and the records that could not be read."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from celery_throttle.control.queues import consumed
from celery_throttle.control.reader import MOST, readers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.control.reader import Reader
    from celery_throttle.store.parked_tasks import ParkedInQueue
    from celery_throttle.store.unreadable import SetAside
    from celery_throttle.store.workers import Declared

__all__ = ["Fleet", "Queue", "Worker", "fleet"]

#: Lanes of each group that are read for their queues.
_MOST_LANES = 2000
_MOST_SET_ASIDE = 100


@dataclass(frozen=True)
class Worker:
    """A worker that has declared limits, or holds permits.

    Attributes:
        name: node, process id and a random part.
        called: time of its last call; None if there was none, or if the worker has left.
        limits: number of limits that it has declared.
        holds: number of its tasks that have permits or an identity lock.
        lease_left: seconds until the first of their leases ends, None if it has no such tasks.
    """

    name: str
    called: datetime | None
    limits: int
    holds: int
    lease_left: float | None


@dataclass(frozen=True)
class Queue:
    """A queue of the app's own broker, with the number of its parked tasks and the arrival of the first.

    ``taken``: whether a worker that answers consumes the queue; None if no worker answered.
    """

    name: str
    parked: int
    since: datetime | None
    taken: bool | None


@dataclass(frozen=True)
class Fleet:
    """Workers, queues and unreadable records, at one moment.

    Attributes:
        at: the store's time.
        workers: the workers, sorted by the end of their first lease.
        queues: the queues that no worker consumes, then the others, those with the most parked tasks first.
        aside: the newest records and fields that could not be read.
        answered: whether a worker has answered.
        cut: whether there may be more parked tasks, holders or records.
    """

    at: datetime
    workers: tuple[Worker, ...]
    queues: tuple[Queue, ...]
    aside: tuple[SetAside, ...]
    answered: bool
    cut: bool


def fleet(app: Any) -> Fleet:
    """Read the fleet. It asks all workers for their queues, which takes a second."""
    app.finalize(auto=True)
    workers: dict[str, Worker] = {}
    parked: dict[str, ParkedInQueue] = {}
    aside: list[SetAside] = []
    now, cut = None, False
    for reader in readers(app):
        read_at, _ = reader.clock()
        now = now or read_at
        found, more = reader.parked_by_queue(_MOST_LANES)
        parked |= {name: each.and_also(parked.get(name)) for name, each in found.items()}
        workers |= {each.name: each for each in _workers(reader, read_at)}
        some = reader.set_aside(MOST)
        aside += some
        cut = cut or more or len(some) >= MOST
    taken = consumed(app)
    names = {*parked, *(taken or ())}
    queues = [_queue(name, parked.get(name), taken) for name in names]
    return Fleet(
        now or datetime.now().astimezone(),
        tuple(sorted(workers.values(), key=lambda each: (each.lease_left is None, each.lease_left or 0.0, each.name))),
        tuple(sorted(queues, key=lambda each: (each.taken is not False, -each.parked, each.name))),
        tuple(sorted(aside, key=lambda each: each.since, reverse=True)[:_MOST_SET_ASIDE]),
        taken is not None,
        cut or len(aside) > _MOST_SET_ASIDE,
    )


def _queue(name: str, parked: ParkedInQueue | None, taken: set[str] | None) -> Queue:
    count, since = (parked.tasks, parked.since) if parked else (0, None)
    return Queue(name, count, since, None if taken is None else name in taken)


def _workers(reader: Reader, now: datetime) -> Iterator[Worker]:
    holders = reader.holders(None, MOST)
    holds = Counter(each.worker for each in holders)
    ends: dict[str, float] = {}
    for each in holders:
        ends[each.worker] = min(each.lease_left, ends.get(each.worker, each.lease_left))
    declared: dict[str, Declared] = {each.worker: each for each in reader.declared()}
    for name in {*declared, *holds}:
        row = declared.get(name)
        called = now - timedelta(seconds=row.seconds) if row and row.seconds is not None else None
        yield Worker(name, called, len(row.limits) if row else 0, holds[name], ends.get(name))
