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

__all__ = ["Fleet", "Worker", "fleet"]

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
class Fleet:
    """Workers, queues and unreadable records, at one moment.

    Attributes:
        at: the store's time.
        workers: the workers, sorted by the end of their first lease.
        queues: the queues that no worker consumes, then the others, those with the most parked tasks first.
        parked: the parked tasks of each queue of the app's own broker.
        taken: the queues that workers consume which answer; None if no worker answered.
        aside: the newest records and fields that could not be read.
        cut: whether there may be more parked tasks, holders or records.
    """

    at: datetime
    workers: tuple[Worker, ...]
    queues: tuple[str, ...]
    parked: dict[str, ParkedInQueue]
    taken: set[str] | None
    aside: tuple[SetAside, ...]
    cut: bool


def fleet(app: Any) -> Fleet:
    """Read the fleet. It asks all workers for their queues, which takes a second."""
    app.finalize(auto=True)
    workers: dict[str, Worker] = {}
    parked: dict[str, ParkedInQueue] = {}
    aside: list[SetAside] = []
    clocks, cut = [], False
    for reader in readers(app):
        now, _ = reader.clock()
        clocks.append(now)
        found, more = reader.parked_by_queue(_MOST_LANES)
        parked |= {name: each.and_also(parked.get(name)) for name, each in found.items()}
        workers |= {each.name: each for each in _workers(reader, now)}
        some = reader.set_aside(MOST)
        aside += some
        cut = cut or more or len(some) >= MOST
    taken = consumed(app)
    count = {name: each.tasks for name, each in parked.items()}
    queues = {*parked, *(taken or ())}
    return Fleet(
        clocks[0],
        tuple(sorted(workers.values(), key=lambda each: (each.lease_left is None, each.lease_left or 0.0, each.name))),
        tuple(sorted(queues, key=lambda name: (taken is None or name in taken, -count.get(name, 0), name))),
        parked,
        taken,
        tuple(sorted(aside, key=lambda each: each.since, reverse=True)[:_MOST_SET_ASIDE]),
        cut or len(aside) > _MOST_SET_ASIDE,
    )


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
