"""Read the parked tasks: their lines, their queues and their arrival times."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from celery_throttle.core.buckets import Bucket
from celery_throttle.core.queues import BrokerQueue
from celery_throttle.core.wording import one_line, started_before
from celery_throttle.store.needs import Need, needs_from
from celery_throttle.store.parcel import task_name_in
from celery_throttle.store.reading import UNREADABLE, came, came_from_text, text, wait_end

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from celery_throttle.store.reading import WaitEnd

__all__ = [
    "First",
    "Oldest",
    "Parked",
    "ParkedId",
    "ParkedInQueue",
    "Waiter",
    "parked_rows",
    "read_firsts",
    "read_oldest",
    "read_parked",
    "read_parked_by_queue",
    "read_parked_ids",
    "read_waiters",
]

#: The beginnings of the lines of tasks that wait for an identity lock, or for the end of a pause.
_APART = (b"follow:", b"next:", b"again:")


@dataclass(frozen=True)
class Parked:
    """A parked task.

    Attributes:
        task_id: the id of the task.
        task_name: the name of the task; None if its message has none, or is very large.
        limit: the limit in whose line the task waits; None if it waits for its identity lock, or only for a slot.
        key: the value of the limit's key, if it has one.
        queue: the queue whose workers can start the task; that of a permit outside of tasks begins with ``~``.
        place: the place in the line, 1 for the first.
        deliveries: the number of earlier starts, by workers that were lost.
        since: the time when the task came to a worker, or back in line; None if its record is unreadable.
        broker: the code of the queue's broker, as `doctor` lists it; "" if it is not known.
        wait_ends: the time after which the task does not start; None if it may wait for ever.
        wait_ends_by: ``start_deadline`` or ``expires``, whichever ends its wait; None as above.
    """

    task_id: str
    task_name: str | None
    limit: str | None
    key: str | None
    queue: str
    place: int
    deliveries: int
    since: datetime | None = None
    broker: str = ""
    wait_ends: datetime | None = None
    wait_ends_by: WaitEnd | None = None

    def __str__(self) -> str:
        line = (
            f"place {self.place} in the line of {Bucket(self.limit, self.key)}" if self.limit else "in no limit's line"
        )
        task = f"{one_line(self.task_name or 'Task')}[{one_line(self.task_id)}]"
        queue = f", queue {one_line(self.queue)}" if self.queue else ""
        return f"{task}: {line}{queue}{started_before(self.deliveries)}"


class Waiter(NamedTuple):
    """A parked task in the line of a limit, and the permits that it needs.

    ``turns``: the bucket in whose line the place of the task is ``turn``, not ``ticket``.
    """

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


class First(NamedTuple):
    """The first task in a line, and its arrival time."""

    task_id: str
    since: datetime | None


class Oldest(NamedTuple):
    """The parked task of a limit with the longest wait, and the line of that task."""

    bucket: Bucket
    first: First


class ParkedId(NamedTuple):
    """A parked task; ``what``: it ``runs`` in its turn, ``waits`` for a lock, or ends without running (``told``)."""

    ticket: str
    task: str
    queue: BrokerQueue
    what: str

    @property
    def since(self) -> datetime | None:
        """The arrival time of the task."""
        return came_from_text(self.ticket)


class ParkedInQueue(NamedTuple):
    """The number of parked tasks of a queue, and the arrival time of the first."""

    queue: BrokerQueue
    tasks: int
    since: datetime | None

    def and_also(self, other: ParkedInQueue | None) -> ParkedInQueue:
        """Return the sum of both."""
        if other is None:
            return self
        times = [each.since for each in (self, other) if each.since]
        return ParkedInQueue(self.queue, self.tasks + other.tasks, min(times, default=None))


def parked_rows(raw: Any) -> tuple[bytes, list[Any]]:
    """Read the reply of parked.lua: the cursor of the next page, and a page, for `read_parked` and `read_waiters`."""
    after, rows = raw
    return after, rows


def read_parked(rows: Iterable[Any]) -> tuple[Parked, ...]:
    """Return the parked tasks of rows of parked.lua."""
    return tuple(_parked(*row) for row in rows)


def _parked(line: bytes, place: int, task: bytes, packed: bytes, head: bytes) -> Parked:
    try:
        record = json.loads(packed) if packed else {}
    except UNREADABLE:
        record = {}
    if not isinstance(record, dict):  # the store sets the record aside when its turn comes
        record = {}
    bucket = Bucket.parse(text(line)) if line and not line.startswith(_APART) else None
    queue = BrokerQueue.parse(str(record.get("queue", "")))
    by, end = wait_end(record) or (None, None)
    return Parked(
        text(task),
        task_name_in(head),
        bucket.name if bucket else None,
        bucket.key if bucket else None,
        queue.name,
        place,
        record.get("deliveries", 0),
        came(record.get("ticket")),
        queue.broker,
        end,
        by,
    )


def read_waiters(rows: Iterable[Any]) -> list[Waiter]:
    """Return the waiters of rows of parked.lua, without tasks that wait for a lock and unreadable records."""
    found = []
    for line, _, task, packed, _ in rows:
        if line.startswith(_APART):
            continue
        try:
            record = json.loads(packed)
            # A task in no limit's line only waits for a slot, also if it ends without running.
            needs = needs_from(record["needs"]) if line else ()
            ticket, queue = float(record["ticket"]), BrokerQueue.parse(str(record["queue"]))
            turns = Bucket.parse(record["turn"][0]) if "turn" in record else None
            turn = float(record.get("place", ticket))
        except UNREADABLE:  # the store sets the record aside when its turn comes
            continue
        found.append(Waiter(text(task), Bucket.parse(text(line)), queue, ticket, needs, turns, turn))
    return found


def read_firsts(raw: Any) -> list[First | None]:
    """Read the reply of firsts.lua."""
    return [First(text(row[0]), came_from_text(row[1])) if row else None for row in raw]


def read_oldest(raw: Any) -> list[Oldest | None]:
    """Read the reply of oldest.lua."""
    firsts_of_rows = read_firsts([row[1:] for row in raw])
    return [
        Oldest(Bucket.parse(text(row[0])), first) if first else None
        for row, first in zip(raw, firsts_of_rows, strict=True)
    ]


def read_parked_ids(raw: Any) -> tuple[str, list[ParkedId]]:
    """Read the reply of parked_ids.lua: the cursor of the next page, and a page."""
    after, rows = raw
    return text(after), [
        ParkedId(text(ticket), text(task), BrokerQueue.parse(text(queue)), text(what))
        for task, ticket, queue, what in rows
    ]


def read_parked_by_queue(raw: Any) -> tuple[str, list[ParkedInQueue]]:
    """Read the reply of parked_by_queue.lua: the cursor of the next page, and a page."""
    after, rows = raw
    return text(after), [
        ParkedInQueue(BrokerQueue.parse(text(queue)), count, came_from_text(ticket)) for queue, count, ticket in rows
    ]
