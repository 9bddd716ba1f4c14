"""How many slots of the pool a call offers to the parked tasks, and when it has to be made."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.store_side.calls import Calls

__all__ = ["Offers"]

#: Seconds for which the store need not hear that a permit went from one task to the next, here.
_LAZY = 0.025


class Offers:
    """Decides what the next call of each group asks for; all on the loop.

    Args:
        loop: everything happens on it.
    """

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._parked_first = False
        self._timed = False  # whether a timer runs for what the store may hear late

    def connected(self) -> None:
        """The worker consumes (again), and Celery has emptied the hub's timer."""
        self._timed = False

    def slots(self, calls: Calls, free: int, *, others_wait: bool) -> int:
        """Return how many of the free slots the next call has for parked tasks although others wait for slots here."""
        if not (calls.hungry or calls.freed) or free <= 0:
            return 0
        if others_wait:
            # Both the parked and those who wait here want this slot: they take turns, so that neither starves.
            self._parked_first = not self._parked_first
            if not self._parked_first:
                return 0
        return min(free, max(calls.freed, 1))

    def due(self, calls: Calls, slots: int) -> bool:
        """Whether the call has to be made now, with so many slots."""
        if calls.outbox.urgent or (calls.hungry and slots):
            return True
        if not calls.outbox.lazy:
            return False
        now = monotonic()
        if calls.lazy_since is None:
            calls.lazy_since = now
        left = calls.lazy_since + _LAZY - now
        if left > 0 and not self._timed:
            # Not by the timekeeper: its thread would take the interpreter from the loop for a moment, each time.
            self._timed = True
            self._loop.later(left, self._time_is_up)
        return left <= 0

    def _time_is_up(self) -> None:
        self._timed = False
