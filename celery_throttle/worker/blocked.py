"""Notice that a body kept its worker's main process from renewing leases, and log the fix."""

from __future__ import annotations

import logging
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_throttle.worker.runs import Permit, Run

__all__ = ["Blocked"]

logger = logging.getLogger(__name__)


class Blocked:
    """Checks that renewals come in time, in a pool that runs bodies in the main process.

    In a green pool every thread is a greenlet, and a greenlet that computes keeps all others from running. In a thread
    pool, C code that keeps the interpreter's lock (GIL) does the same to all threads.

    Args:
        pool: the name of the pool; "" where bodies have processes of their own.
        lease: seconds that a permit lasts.
    """

    def __init__(self, pool: str, lease: float) -> None:
        self._pool, self._lease = pool, lease
        self._renewing: dict[str, float] = {}  # the time of the last renewal, by group

    def renewing(self, group: str, permits: Iterable[Permit]) -> None:
        """Check the permits of a group, and note the time: their leases are about to be renewed."""
        for run in [permit.run for permit in permits]:
            if run is not None:
                self._look_at(run)
        self._renewing[group] = monotonic()

    def ended(self, run: Run) -> None:
        """Check a run that has ended, maybe before any other code could run."""
        if run.permit is not None:
            self._look_at(run)

    def _look_at(self, run: Run) -> None:
        seconds = monotonic() - max(self._renewing.get(run.group, 0.0), run.held_since)
        if not self._pool or seconds <= self._lease:
            return
        task = run.request
        again = ", not for the first time" if run.content.redelivered else ""
        logger.warning(
            "lease_lost: no lease was renewed for %.1f s while task %s[%s] ran%s, longer than throttle_lease (%g s): "
            "others may have its permit. The %s pool runs tasks in the worker's main process, and one of them kept all "
            "else from running: give it a worker with the prefork pool, or raise throttle_lease",
            seconds, task.name, task.id, again, self._lease, self._pool,
            extra={"action": "lease_lost", "task_id": task.id, "task_name": task.name},
        )  # fmt: skip
