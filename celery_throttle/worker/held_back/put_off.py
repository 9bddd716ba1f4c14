"""Hold runs that may not be parked now: the line is full, or another publication of the task id goes first."""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING

from celery_throttle.worker.runs import State

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.worker.held_back.held_back import HeldBack
    from celery_throttle.worker.reported.notices import Notices
    from celery_throttle.worker.runs import Run

__all__ = ["PutOff"]

logger = logging.getLogger(__name__)

#: Seconds until a run is tried again: the first pause, the longest one, and how often the pause is doubled.
_FIRST, _LONGEST, _DOUBLED = 0.5, {State.CROWDED: 30.0, State.ID_IN_USE: 2.0}, 6
#: The number of runs from which on a warning is logged, and the seconds until the next one.
_MANY, _LOG_EVERY = 200, 60.0


class PutOff:
    """Holds such runs, each time for longer; all on the loop.

    Args:
        held: holds the runs.
        notices: log which run is held.
    """

    def __init__(self, held: HeldBack, notices: Notices) -> None:
        self._held, self._notices = held, notices
        self._logged_at = -_LOG_EVERY

    def hold(self, run: Run, why: State, again: Callable[[Run], None]) -> None:
        """Hold a run that may not be parked, ``CROWDED`` or ``ID_IN_USE``, and call ``again`` with it after a pause."""

        def come_again(here: list[Run]) -> None:
            for each in here:
                again(each)

        seconds = min(_FIRST * 2 ** min(run.refusals, _DOUBLED), _LONGEST[why])
        run.refusals += 1
        self._held.pause([run], why, seconds, come_again)
        if run.refusals == 1:
            self._notices.put_off(run.request, why)
        count = self._held.count(State.CROWDED)
        if why is State.CROWDED and count >= _MANY and monotonic() - self._logged_at >= _LOG_EVERY:
            self._logged_at = monotonic()
            logger.warning(
                "celery_throttle: %d tasks wait in this worker because as many are parked as max_parked allows; "
                "more stay in the broker, also others of these queues", count,
            )  # fmt: skip
