"""Runs that are held here for a while: as many are parked as may be, or the store refused a call."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from celery_throttle.worker.runs import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.notices import Notices
    from celery_throttle.worker.runs import Run
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["Later"]

logger = logging.getLogger(__name__)

#: Seconds until a call that the store refused (out of memory, read-only) is tried again.
_PUT_OFF = 1.0
#: The same for a task that may not be parked because too many are; twice as long each time.
_CROWDED, _CROWDED_MOST = 0.5, 30.0
#: Tasks held here because too many are parked; all others stay in the broker.
_HELD_MOST = 200


class Later:
    """Holds runs in the state ``LATER``, unacknowledged, and brings them back; all on the loop.

    Args:
        loop: everything happens on it.
        timekeeper: says when.
        prefetch: called with how many more messages the broker may deliver, so that others go on meanwhile.
        notices: say in the log who is held.
    """

    def __init__(self, loop: Loop, timekeeper: Timekeeper, prefetch: Callable[[int], None], notices: Notices) -> None:
        self._loop, self._timekeeper, self._prefetch, self._notices = loop, timekeeper, prefetch, notices
        self.runs: set[Run] = set()

    def crowded(self, run: Run, again: Callable[[Run], None]) -> None:
        """Hold one that may not be parked, since as many are as may be."""
        pause = min(_CROWDED * 2**run.refusals, _CROWDED_MOST)
        run.refusals += 1
        self.runs.add(run)
        if len(self.runs) <= _HELD_MOST:
            self._prefetch(1)
        if run.refusals == 1:
            self._notices.crowded(run.request)
        if len(self.runs) == _HELD_MOST:
            logger.warning(
                "celery_throttle: %d tasks wait in this worker because as many are parked as max_parked allows; "
                "more stay in the broker, also others of these queues", _HELD_MOST,
            )  # fmt: skip
        self._timekeeper.later(pause, lambda: self._loop.post(self._come_again, run, again))

    def _come_again(self, run: Run, again: Callable[[Run], None]) -> None:
        if run.state is State.LATER:  # else the broker delivers it again
            if len(self.runs) <= _HELD_MOST:
                self._prefetch(-1)
            self.runs.discard(run)
            again(run)

    def put_off(self, runs: list[Run], again: Callable[[list[Run]], None]) -> None:
        """Hold those of a call that the store refused."""
        self.runs.update(runs)
        self._prefetch(len(runs))
        self._timekeeper.later(_PUT_OFF, lambda: self._loop.post(self._try_again, runs, again))

    def _try_again(self, runs: list[Run], again: Callable[[list[Run]], None]) -> None:
        here = [run for run in runs if run.state is State.LATER]  # the others are left to the broker
        self._prefetch(-len(here))
        self.runs.difference_update(here)
        again(here)

    def forget(self) -> list[Run]:
        """The broker will deliver again what is held; return it."""
        held = list(self.runs)
        self.runs.clear()
        return held
