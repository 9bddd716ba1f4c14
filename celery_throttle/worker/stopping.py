"""Stop a worker: report the rest to the store, until one deadline for all waits."""

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

#: The most seconds that a stopping worker waits for the store in all; a third of the lease if that is less.
_MOST = 10.0
#: Seconds for steps that do not wait for the store, only for a result backend that may be away.
_STEP = 5.0
#: Seconds for one look of the loop after the deadline.
_TURN = 0.1


class Stopping:
    """Waits for the store while a worker stops, in the thread that stops it.

    All waits together last a third of a lease, ten seconds at most, so that a store without answers does not keep a
    worker from its end. The permits of runs that were not reported come back when their leases end.

    Args:
        loop: the gate's loop, in a thread of its own by now.
        gate: reports the runs that are left.
        lease: seconds that a permit lasts.
    """

    def __init__(self, loop: Loop, gate: Gate, lease: float) -> None:
        self._loop, self._gate = loop, gate
        self._left = self._seconds = min(lease / 3, _MOST)

    def closed(self) -> None:
        """Wait until parked messages are acknowledged, while the broker is connected; the gate starts nothing more."""
        groups = self._gate.groups
        saving = [calls.saving for calls in groups if calls.saving is not None]
        most = max([2 * TIMEOUT, *(each.timeout + TIMEOUT for each in saving)])
        self._wait(
            lambda: all(calls.settled for calls in groups) and all(each.settled for each in saving),
            most,
        )
        for each in saving:
            self._loop.post(each.log_left)

    def flushed(self) -> None:
        """Have the gate look at the jobs that the pool dropped, before the pool goes on."""
        self._loop.post(self._gate.flushed)
        self._loop.wait(lambda: True, _STEP)

    def finish(self) -> None:
        """Report the rest, deregister the worker and end the loop, after the pool has stopped."""
        loop, groups = self._loop, self._gate.groups
        loop.post(self._gate.finish)
        self._wait(lambda: all(calls.settled for calls in groups))
        loop.post(self._gate.keep_back)
        settled = self._wait(lambda: all(calls.settled for calls in groups))
        if not settled:
            logger.warning(
                "celery_throttle: this worker stops, and the store has not answered within %g s: permits that were "
                "not reported come back when their leases end", self._seconds,
            )  # fmt: skip
        for calls in groups:
            loop.post(calls.leave)
        # A task that was revoked in the meantime has a row of its own.
        self._wait(lambda: all(calls.left and calls.settled for calls in groups))
        loop.stop(_STEP)

    def _wait(self, ready: Callable[[], bool], most: float = _MOST) -> bool:
        began = monotonic()
        held = self._loop.wait(ready, max(min(most, self._left), _TURN))
        self._left = max(self._left - (monotonic() - began), 0.0)
        return held
