"""Find bodies that have ended in a worker whose main process hangs, so that their leases are not renewed for ever."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from celery_throttle.worker.runs import State

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_throttle.worker.celery_side.slots import Slots
    from celery_throttle.worker.runs import Permit, Run

__all__ = ["EndedBodies"]

logger = logging.getLogger(__name__)


class EndedBodies:
    """Lets permits lapse whose run's end is not taken in for a third of a lease; in the thread that renews leases.

    A body that goes on keeps its permit, however long the main process hangs.

    Args:
        slots: the slots of Celery's pool.
        lease: seconds that a permit lasts.
    """

    def __init__(self, slots: Slots, lease: float) -> None:
        self._slots, self._most = slots, lease / 3  # the time between two looks

    def let_lapse(self, permits: Iterable[Permit]) -> None:
        """Look at each run that has a permit; called before each renewal."""
        for permit, run in [(permit, permit.run) for permit in permits]:
            if run is None or permit.lapsed or run.end_unread_for(ended=self._has_ended(run)) < self._most:
                continue
            permit.lapse()
            logger.warning(
                "celery_throttle: the body of task %s[%s] has ended, and this worker, which hangs, has not noticed for "
                "%.1f s: the permit of the task is not renewed any more, and goes to another one",
                run.request.name, run.request.id, self._most,
            )  # fmt: skip

    def _has_ended(self, run: Run) -> bool:
        return run.state is State.RUNNING and (run.body_ended or self._slots.has_unread_end(run))
