"""Read the replies about parked tasks that are drained: published to their queues again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from celery_throttle.core.queues import BrokerQueue
from celery_throttle.core.wording import counted, one_line
from celery_throttle.store.reading import text

__all__ = ["Drained", "Lent", "read_lent"]


@dataclass(frozen=True)
class Drained:
    """The outcome of a drain for the parked tasks of one queue.

    Attributes:
        queue: the name of the queue.
        tasks: the number of tasks that were published to the queue, or would be.
        left: the number of tasks that are still parked: duplicates that wait for the outcome of their first, tasks that
            end without running, unreadable messages, and tasks that workers have parked during the drain.
        elsewhere: the number of tasks parked for a queue of this name at another broker; they stay parked.
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
    """Read the reply of unpark.lua: how many tasks the script has seen, and the tasks whose messages it lent."""
    looked_at, rows = raw
    return looked_at, [Lent(text(task), BrokerQueue.parse(text(queue)), message) for task, queue, message in rows]
