"""Read the holders: the tasks that run, or are about to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from celery_throttle.core.queues import BrokerQueue
from celery_throttle.core.wording import at, one_line, seconds, started_before
from celery_throttle.store.needs import Need, needs_from
from celery_throttle.store.reading import NO_NAMES, name_of, readable, text, when

if TYPE_CHECKING:
    from datetime import datetime

    from celery_throttle.core.task_codes import TaskNames

__all__ = ["Holder", "read_holders"]


@dataclass(frozen=True)
class Holder:
    """A task that runs, or is about to run.

    Attributes:
        task_id: the id of the task.
        needs: the permits that the task holds; none for a task that only has an identity lock.
        worker: its worker in this store: node, process id and a part of its own, as in ``celery@web1/4242/1f3a9c2e``.
        lease_left: seconds until the permits can be reclaimed unless the worker renews them; negative: overdue.
        queue: the queue that the task came from, None if it is not known.
        deliveries: the number of earlier starts, by workers that were lost.
        since: the time when the task got its permits.
        task_name: the name of the task; None if the app that reads has no such task.
        broker: the code of the queue's broker, as `doctor` lists it; "" if it is not known.
    """

    task_id: str
    needs: tuple[Need, ...]
    worker: str
    lease_left: float
    queue: str | None
    deliveries: int
    since: datetime
    task_name: str | None = None
    broker: str = ""

    def __str__(self) -> str:
        holds = " and ".join(map(str, self.needs)) or "no permit"
        left = self.lease_left
        lease = f"ends in {seconds(left)}" if left >= 0 else f"ended {seconds(-left)} ago"
        queue = f", queue {one_line(self.queue)}" if self.queue else ""
        task = f"{one_line(self.task_name)}[{one_line(self.task_id)}]" if self.task_name else one_line(self.task_id)
        return (
            f"{task} holds {holds} since {at(self.since)}, worker {self.worker}, lease {lease}"
            f"{queue}{started_before(self.deliveries)}"
        )


def read_holders(raw: Any, names: TaskNames = NO_NAMES) -> tuple[tuple[Holder, ...], bool]:
    """Read the reply of holders.lua: holders, and whether there are more; ``names``: of the app's tasks."""
    now, more, rows = raw
    return tuple(readable(lambda row: _holder(row, now, names), rows)), bool(more)


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
        when(record["since"]),
        name_of(record, names),
        queue.broker,
    )
