"""The end of a worker: what it still has to report to the store, until one deadline."""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING

from celery_throttle.store.servers.client import TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.worker.gate import Gate
    from celery_throttle.worker.loop import Loop

__all__ = ["Stopping"]

logger = logging.getLogger(__name__)

#: Seconds that a worker which stops waits for the store in all, at most; a third of the lease where that is less.
_MOST = 10.0
#: Seconds for what the gate does by itself, which waits for nothing but a result backend that is away.
_STEP = 5.0
#: Seconds for the loop to look, where the store gets no more.
_TURN = 0.1


class Stopping:
    """Waits for the store where a worker stops, in the thread that stops it.

    All waits together last a third of a lease, ten seconds at most: a store that says nothing does not keep a worker
    from its end. The permits of what was not reported come back when their leases end.

    Args:
        loop: the gate's, in a thread of its own by now.
        gate: reports what is left.
        lease: seconds that a permit lasts.
    """

    def __init__(self, loop: Loop, gate: Gate, lease: float) -> None:
        self._loop, self._gate = loop, gate
        self._left = self._seconds = min(lease / 3, _MOST)

    def closed(self) -> None:
        """The gate starts nothing more. What is being parked has to be acknowledged while the broker is still there."""
        groups = self._gate.groups
        saving = [calls.saving for calls in groups if calls.saving is not None]
        most = max([2 * TIMEOUT, *(each.timeout + TIMEOUT for each in saving)])
        self._wait(
            lambda: all(calls.settled for calls in groups) and all(each.settled for each in saving),
            most,
        )
        for each in saving:
            self._loop.post(each.say_left)

    def flushed(self) -> None:
        """The pool has thrown away what no process has begun: look at its jobs before it goes on."""
        self._loop.post(self._gate.flushed)
        self._loop.wait(lambda: True, _STEP)

    def finish(self) -> None:
        """The pool has stopped: report the rest, deregister, and end the loop."""
        loop, groups = self._loop, self._gate.groups
        loop.post(self._gate.finish)
        self._wait(lambda: all(calls.settled for calls in groups))
        loop.post(self._gate.keep_back)
        settled = self._wait(lambda: all(calls.settled for calls in groups))
        if not settled:
            logger.warning(
                "celery_throttle: this worker stops, and the store has not answered within %g s: permits that it has "
                "not heard of come back when their leases end", self._seconds,
            )  # fmt: skip
        for calls in groups:
            loop.post(calls.leave)
        self._wait(lambda: all(calls.left for calls in groups))
        loop.stop(_STEP)

    def _wait(self, ready: Callable[[], bool], most: float = _MOST) -> bool:
        began = monotonic()
        held = self._loop.wait(ready, max(min(most, self._left), _TURN))
        self._left = max(self._left - (monotonic() - began), 0.0)
        return held
