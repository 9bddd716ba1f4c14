"""Acknowledge messages at the broker when the store has a copy of them."""

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
    """Acknowledges parked messages: at once, or when the store's copy is safe; all on the loop.

    Args:
        running: removes a request from Celery's lists.
        broker: the broker's connection: only messages of the present one can be acknowledged.
        loop: the loop that everything happens on.
        groups: the calls of each group, by its name.
        held: holds runs until they are safe.
    """

    def __init__(
        self, running: Running, broker: Broker, loop: Loop, groups: Mapping[str, Calls], held: HeldBack
    ) -> None:
        self._running, self._broker, self._loop, self._groups, self._held = running, broker, loop, groups, held

    def parked(self, run: Run) -> None:
        """Acknowledge the message of a run that the store has parked, or hold the run until its copy is safe."""
        self._held.release(run, State.GONE)
        run.parcel = b""
        if run.keeps and run.at_broker and not self._broker.delivers_again(run):
            self._held.hold(run, State.SAVING)
        else:
            if run.at_broker:
                self._groups[run.group].outbox.acknowledging(run)
            self._acknowledge(run)

    def has_run(self, run: Run) -> None:
        """Acknowledge the message of a task that has run: the store has no copy that could be lost."""
        run.keeps = False
        self.parked(run)

    def saved(self, run: Run) -> None:
        """Acknowledge the message of a run whose parked copy is safe, or is needed no more."""
        self._acknowledge(run)
        self._loop.post(self._report_acknowledged, run)

    def _acknowledge(self, run: Run) -> None:
        """Acknowledge a message; Celery sends that at the beginning of the hub's next turn."""
        if not self._broker.delivers_again(run):
            self._running.forget(run.request)
            with suppress(OSError):  # kombu logs it
                run.request.acknowledge()

    def _report_acknowledged(self, run: Run) -> None:
        if not run.at_broker and not self._broker.delivers_again(run):
            self._groups[run.group].outbox.acked(run.delivery)
