"""Runs that are held here for a while: as many are parked as may be, or somebody refused to hear of them."""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING

from celery_throttle.worker.celery_side.prefetch import Extra
from celery_throttle.worker.runs import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.reported.notices import Notices
    from celery_throttle.worker.runs import Run
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["Later"]

logger = logging.getLogger(__name__)

#: Seconds until what the store refused (out of memory, read-only), or the result backend, is tried again.
_PUT_OFF = 1.0
#: The same for a task that may not be parked because too many are; twice as long each time, so many times.
_CROWDED, _CROWDED_MOST, _DOUBLED = 0.5, 30.0, 6
#: Tasks held here because too many are parked, and because somebody refused; all others stay in the broker.
_CROWDED_HELD, _PUT_OFF_HELD = 200, 1000
#: Seconds after which it is said again that so many are held.
_SAY_EVERY = 60.0


class Later:
    """Holds runs in the state ``LATER``, unacknowledged, and brings them back; all on the loop.

    Args:
        loop: everything happens on it.
        timekeeper: says when.
        change: called with how many more messages the broker may deliver, so that others go on meanwhile.
        notices: say in the log who is held.

    Attributes:
        many: those that may not be parked yet, since as many are as may be.
        refused: those that somebody refused to hear of.
    """

    def __init__(self, loop: Loop, timekeeper: Timekeeper, change: Callable[[int], None], notices: Notices) -> None:
        self._loop, self._timekeeper, self._notices = loop, timekeeper, notices
        self.many: set[Run] = set()
        self.refused: set[Run] = set()
        self._many_more, self._refused_more = Extra(change, _CROWDED_HELD), Extra(change, _PUT_OFF_HELD)
        self._said_at = -_SAY_EVERY  # that so many are held

    def crowded(self, run: Run, again: Callable[[Run], None]) -> None:
        """Hold one that may not be parked, since as many are as may be."""
        pause = min(_CROWDED * 2 ** min(run.refusals, _DOUBLED), _CROWDED_MOST)
        run.refusals += 1
        self.many.add(run)
        self._many_more.hold(len(self.many))
        if run.refusals == 1:
            self._notices.crowded(run.request)
        if len(self.many) >= _CROWDED_HELD and monotonic() - self._said_at >= _SAY_EVERY:
            self._said_at = monotonic()
            logger.warning(
                "celery_throttle: %d tasks wait in this worker because as many are parked as max_parked allows; "
                "more stay in the broker, also others of these queues", len(self.many),
            )  # fmt: skip
        self._timekeeper.later(pause, lambda: self._loop.post(self._come_again, run, again))

    def _come_again(self, run: Run, again: Callable[[Run], None]) -> None:
        if run.state is State.LATER:  # else the broker delivers it again
            self.many.discard(run)
            self._many_more.hold(len(self.many))
            again(run)

    def put_off(self, runs: list[Run], again: Callable[[list[Run]], None]) -> None:
        """Hold those that somebody refused to hear of."""
        self.refused.update(runs)
        self._refused_more.hold(len(self.refused))
        self._timekeeper.later(_PUT_OFF, lambda: self._loop.post(self._try_again, runs, again))

    def _try_again(self, runs: list[Run], again: Callable[[list[Run]], None]) -> None:
        here = [run for run in runs if run.state is State.LATER]  # the others are left to the broker
        self.refused.difference_update(here)
        self._refused_more.hold(len(self.refused))
        again(here)

    def forget(self) -> list[Run]:
        """The broker will deliver again what is held; return it."""
        held = [*self.many, *self.refused]
        self.many.clear()
        self.refused.clear()
        self._many_more.forget()
        self._refused_more.forget()
        return held
