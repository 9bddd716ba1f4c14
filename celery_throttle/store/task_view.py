"""Read the view of one task: its record, line, limits and lock in the store."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from celery_throttle.core.queues import BrokerQueue
from celery_throttle.store.identity_locks import lock_from
from celery_throttle.store.limit_status import LimitStatus, statuses_from
from celery_throttle.store.needs import Need, needs_from
from celery_throttle.store.parcel import read_head
from celery_throttle.store.reading import NO_NAMES, name_of, text, wait_end, when

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    from celery_throttle.core.buckets import Bucket
    from celery_throttle.core.task_codes import TaskNames
    from celery_throttle.store.reading import WaitEnd

__all__ = ["Ahead", "TaskView", "read_task_view"]


@dataclass(frozen=True)
class Ahead:
    """The tasks of one queue that are before a task in its line.

    ``passed_over``: that queue was offered a start, which no worker took in time.
    """

    queue: str
    count: int
    passed_over: bool


@dataclass(frozen=True)
class TaskView:
    """The record, line, limits and lock of one task in the store.

    Attributes:
        state: ``held``, ``parked`` or ``""`` (unknown).
        counted: whether the task holds permits, or waits for them.
        line: the line of the parked task: a bucket, ``""`` or the line of an identity lock.
        broker: the code of the queue's broker.
        service: the description of that broker if it is not the app's own; else "".
        again: the time before which the task does not begin again, None if there is none.
        wait_ends: what ends the wait of the task first, and the time; None if nothing does.
        expires_now: whether its wait has ended, or the task was dropped, and a worker has to report that.
        dropped: the operator that dropped the task, "" if the task was not dropped.
        dropped_at: the time when the task was dropped.
        lent: whether the message is on the way to its queue.
        settling: seconds for which no task starts, because the store has just lost its data.
        lock: (state, task id, time of the state) of the task's identity lock; None: the task has none, or it is free.
        args: the positional arguments as text, cut; None if the store has no message with such a text.
        kwargs: the keyword arguments, in the same form.
        eta: the time before which the task must not start; None if the message has none, or is not in the store.
        kind: the kind of site whose permits the task waits for, "" for none.
        lacking: a kind of site that the task needs and that no live worker has, "" for none.
        turns: the bucket in whose line its place is ``turn``, not ``ticket``; "" for none.
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
    wait_ends: tuple[WaitEnd, datetime] | None
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
    again: datetime | None = None
    kind: str = ""
    lacking: str = ""
    turns: str = ""
    turn: float = 0

    def place(self, bucket: Bucket) -> float:
        """Return its place in the line of a bucket."""
        return self.turn if bucket.text == self.turns else self.ticket


def read_task_view(raw: Any, names: TaskNames = NO_NAMES) -> TaskView:
    """Read the reply of explain.lua; ``names``: of the app's tasks, for a task whose message is gone."""
    now, settling, packed, lease_end, line, head, lock, second, queues, limits, aside = raw
    record: dict[str, Any] = json.loads(packed) if packed else {}
    plan = record.get("lock")
    runs = not record.keys() & {"expired", "lent", "again"} and (not plan or plan["verdict"] == "run")
    queue, about = BrokerQueue.parse(record.get("queue", "")), read_head(head)
    return TaskView(
        now=when(now),
        state="" if not record else "held" if "nonce" in record else "parked",
        counted=bool(runs and record.get("needs")),
        line=text(line),
        ticket=record.get("ticket", 0),
        turns=record["turn"][0] if "place" in record and "turn" in record else "",
        turn=record.get("place", 0),
        queue=queue.name,
        broker=queue.broker,
        deliveries=record.get("deliveries", 0),
        nonce=record.get("nonce", ""),
        lease_left=(lease_end - now) / 1000,
        wait_ends=wait_end(record),
        expires_now=bool(record.get("expired")),
        dropped=record.get("dropped", ""),
        lent=bool(record.get("lent")),
        task_name=about.task_name or name_of(record, names),
        needs=needs_from(record.get("needs", "")),
        limits=statuses_from(limits, now),
        ahead=tuple(_ahead(queues, now)),
        settling=settling / 1000,
        verdict=plan["verdict"] if plan else "",
        lock=lock_from(lock),
        second=bool(second),
        aside=text(aside),
        dropped_at=when(record["dropped_at"]) if "dropped_at" in record else None,
        args=about.args,
        kwargs=about.kwargs,
        eta=about.eta,
        again=when(record["again"]) if "again" in record else None,
    )


def _ahead(queues: Any, now: int) -> Iterator[Ahead]:
    """Yield the tasks ahead by queue; a queue has a row of the reply for each set of needs of its tasks."""
    counts: Counter[tuple[str, bool]] = Counter()
    for name, count, passed in queues:
        counts[BrokerQueue.parse(text(name)).name, passed > now] += count
    for (queue, passed_over), count in counts.items():
        yield Ahead(queue, count, passed_over)
