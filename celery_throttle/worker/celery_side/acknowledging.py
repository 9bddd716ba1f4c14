"""When the broker hears that it need not keep a message any more."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from celery_throttle.worker.runs import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.running import Running
    from celery_throttle.worker.runs import Run
    from celery_throttle.worker.store_side.calls import Calls

__all__ = ["Acknowledging"]


class Acknowledging:
    """Acknowledges what the store has: at once, or when it is safe there; all on the loop.

    Args:
        running: knows the epoch, and what Celery noted of a request.
        loop: everything happens on it.
        groups: the calls of each group, by its name.
    """

    def __init__(self, running: Running, loop: Loop, groups: Mapping[str, Calls]) -> None:
        self._running, self._loop, self._groups = running, loop, groups

    def parked(self, run: Run) -> None:
        """The store has it."""
        if not self._save(run):
            self._acknowledge(run)
            self._groups[run.group].outbox.acknowledging(run)

    def has_run(self, run: Run) -> None:
        """The store has nothing of it that could be lost."""
        run.keeps = False
        self.parked(run)

    def saved(self, run: Run) -> None:
        """What the store has is safe there, or nobody needs it any more."""
        run.state = State.GONE
        self._acknowledge(run)
        self._loop.post(self._tell, run)

    def disconnected(self) -> None:
        """The broker will deliver again what it keeps."""
        for calls in self._groups.values():
            for run in calls.saving.forget() if calls.saving else ():
                run.state = State.GONE

    def _acknowledge(self, run: Run) -> None:
        """Celery does it at the beginning of the hub's next turn."""
        if run.epoch == self._running.epoch:
            self._running.forget(run.request)
            with suppress(OSError):  # kombu logs it
                run.request.acknowledge()

    def _save(self, run: Run) -> bool:
        """Whether the broker keeps its message for now."""
        saving = self._groups[run.group].saving
        if saving is None or not run.keeps or not run.at_broker or run.epoch != self._running.epoch:
            return False
        run.state = State.SAVING
        saving.hold(run)
        return True

    def _tell(self, run: Run) -> None:
        if not run.at_broker:
            self._groups[run.group].outbox.acked(run.delivery)
