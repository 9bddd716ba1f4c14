"""The parked tasks that go back to their queues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from celery_throttle.core.queues import BrokerQueue
from celery_throttle.core.wording import counted, one_line
from celery_throttle.store.reading import text

__all__ = ["Drained", "Lent", "read_lent"]


@dataclass(frozen=True)
class Drained:
    """What became of the parked tasks of a queue.

    Attributes:
        queue: its name.
        tasks: how many are in it again, or would be.
        left: how many are parked still, or again: duplicates that wait for their first, those that have only to be told
            that they do not run, messages that are not readable; and what workers have parked meanwhile.
        elsewhere: how many are parked of a queue of this name at another broker: they stay parked.
    """

    queue: str
    tasks: int
    left: int
    elsewhere: int = 0

    def __str__(self) -> str:
        left = f", {self.left} left" if self.left else ""
        elsewhere = f", {self.elsewhere} of another broker" if self.elsewhere else ""
        return f"{one_line(self.queue)}: {counted(self.tasks, 'task')}{left}{elsewhere}"


class Lent(NamedTuple):
    """A parked task whose message is to be published again."""

    task: str
    queue: BrokerQueue
    message: bytes


def read_lent(raw: Any) -> tuple[int, list[Lent]]:
    """Read the reply of unpark.lua: how many tasks were looked at, and those that were lent out."""
    looked_at, rows = raw
    return looked_at, [Lent(text(task), BrokerQueue.parse(text(queue)), message) for task, queue, message in rows]
