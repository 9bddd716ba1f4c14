"""When messages are acknowledged of which the store has a copy."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from celery_throttle.worker.runs import State

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_throttle.worker.celery_side.broker import Broker
    from celery_throttle.worker.held_back.held_back import HeldBack
    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.running import Running
    from celery_throttle.worker.runs import Run
    from celery_throttle.worker.store_side.calls import Calls

__all__ = ["Acknowledging"]


class Acknowledging:
    """Acknowledges what the store has: at once, or when it is safe there; all on the loop.

    Args:
        running: knows what Celery noted of a request.
        broker: takes acknowledgements of its present connection alone.
        loop: everything happens on it.
        groups: the calls of each group, by its name.
        held: holds runs until they are safe.
    """

    def __init__(
        self, running: Running, broker: Broker, loop: Loop, groups: Mapping[str, Calls], held: HeldBack
    ) -> None:
        self._running, self._broker, self._loop, self._groups, self._held = running, broker, loop, groups, held

    def parked(self, run: Run) -> None:
        """The store has it."""
        self._held.release(run, State.GONE)
        run.parcel = b""
        if run.keeps and run.at_broker and not self._broker.delivers_again(run):
            self._held.hold(run, State.SAVING)
        else:
            if run.at_broker:
                self._groups[run.group].outbox.acknowledging(run)
            self._acknowledge(run)

    def has_run(self, run: Run) -> None:
        """The store has nothing of it that could be lost."""
        run.keeps = False
        self.parked(run)

    def saved(self, run: Run) -> None:
        """What the store has is safe there, or nobody needs it any more."""
        self._acknowledge(run)
        self._loop.post(self._tell, run)

    def _acknowledge(self, run: Run) -> None:
        """Celery does it at the beginning of the hub's next turn."""
        if not self._broker.delivers_again(run):
            self._running.forget(run.request)
            with suppress(OSError):  # kombu logs it
                run.request.acknowledge()

    def _tell(self, run: Run) -> None:
        if not run.at_broker and not self._broker.delivers_again(run):
            self._groups[run.group].outbox.acked(run.delivery)
