"""Report leases: those of lost workers that have ended, and those that tasks lose while they run here.

The thread that renews leases finds the lost ones, often while the loop is blocked. A receiver that took its time there
would cost other leases, so receivers of `lease_lost` have a thread of their own. The events go to the broker, on the
loop, as all others do.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from celery_throttle.store.reclaimed import reclaimed_text
from celery_throttle.worker.reported.aside import Aside
from celery_throttle.worker.reported.signals_and_events import send_lost, send_lost_event, send_reclaimed

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.core.task_codes import TaskNames
    from celery_throttle.store.exchange_reply import Cleared
    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.runs import Run

__all__ = ["LeaseReports"]

logger = logging.getLogger(__name__)

#: Seconds that a stopping worker waits for receivers.
_LAST = 1.0


class LeaseReports:
    """Sends `permit_reclaimed`, `lease_lost` and the event of the latter.

    Args:
        loop: sends events.
        names: returns the names of the app's tasks, for the log.
    """

    def __init__(self, loop: Loop, names: Callable[[], TaskNames]) -> None:
        self._loop, self._names = loop, names
        self._aside = Aside("celery-throttle-lease-lost")

    def reclaimed(self, each: Cleared) -> None:
        """Report permits of a lost worker's task, which are free now; on the loop."""
        logger.warning("%s", reclaimed_text(each, self._names()))
        send_reclaimed(each.task, each.needs)

    def lost(self, run: Run, needs: str) -> None:
        """Report a lost lease, without waiting; from any thread. ``needs``: those of its permit, as text."""
        self._aside.call(partial(send_lost, run, needs))
        self._loop.post(send_lost_event, run)

    def finish(self) -> None:
        """Wait a moment for the receivers, because the worker stops."""
        self._aside.finish(_LAST)
