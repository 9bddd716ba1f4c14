"""Take no parked tasks of a queue for a moment, after one of them is not registered in this worker."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["AvoidedQueues"]

#: Seconds of the first and the longest pause. Each further unregistered task doubles the pause, so that other workers
#: of the queue get the task.
_FIRST, _LONGEST = 1.0, 60.0


class AvoidedQueues:
    """Queues whose parked tasks are left to other workers; all on the loop.

    Args:
        loop: the loop that everything happens on.
        timekeeper: calls when a pause ends.
        changed: called when the set of avoided queues has changed.
    """

    def __init__(self, loop: Loop, timekeeper: Timekeeper, changed: Callable[[], None]) -> None:
        self._loop, self._timekeeper, self._changed = loop, timekeeper, changed
        self._pauses: dict[str, float] = {}
        self._now: set[str] = set()

    def others(self, queues: Iterable[str]) -> tuple[str, ...]:
        """Return the queues among the given ones that are served."""
        return tuple(queue for queue in queues if queue not in self._now)

    def avoid(self, queue: str) -> None:
        """Leave the parked tasks of a queue to other workers for a moment."""
        if queue in self._now:
            return
        pause = min(2 * self._pauses.get(queue, _FIRST / 2), _LONGEST)
        self._pauses[queue] = pause
        self._now.add(queue)
        self._timekeeper.later(pause, lambda: self._loop.post(self._serve, queue))
        self._changed()

    def _serve(self, queue: str) -> None:
        self._now.discard(queue)
        self._changed()

    def reset(self, queue: str) -> None:
        """Make the next pause of a queue short again, because a task of the queue starts here."""
        self._pauses.pop(queue, None)
