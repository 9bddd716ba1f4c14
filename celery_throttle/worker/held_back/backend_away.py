"""Take steps that may write to the result backend, and try them again while it is away; any other error ends a run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from celery_throttle.worker.celery_side.failing import fail_or_reject, may_pass
from celery_throttle.worker.runs import State
from celery_throttle.worker.store_side.decisions import PAUSE
from celery_throttle.worker.user_code import call

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.worker.celery_side.broker import Broker
    from celery_throttle.worker.held_back.held_back import HeldBack
    from celery_throttle.worker.reported.paced_log import PacedLog
    from celery_throttle.worker.runs import Run

__all__ = ["BackendAway"]

logger = logging.getLogger(__name__)


class BackendAway:
    """Holds runs while the result backend is away; all on the loop.

    Args:
        held: holds the runs.
        broker: has the messages, and delivers those of a lost connection again.
        stops: returns whether the worker stops.
        never_runs: called with a run that has failed before it started.
        log: for the runs that are held, of which there may be thousands.
    """

    def __init__(
        self,
        held: HeldBack,
        broker: Broker,
        stops: Callable[[], bool],
        never_runs: Callable[[Run], None],
        log: PacedLog,
    ) -> None:
        self._held, self._broker, self._stops, self._never_runs, self._log = held, broker, stops, never_runs, log

    def attempt(self, step: Callable[[Run], None], run: Run, again: Callable[[list[Run]], None] | None = None) -> None:
        """Take a step that may store that the run is revoked, has expired, or failed.

        If the backend is away the run is held for a while, and then waits for a slot again, or ``again`` is called. By
        any other error the run fails: another try would have the same error.
        """
        try:
            call(step, run)
        except Exception as error:
            if self._stops():
                raise
            if not may_pass(error):
                self._fail_by(step, run, error)
                return
            if not run.at_broker:
                logger.exception("celery_throttle: error in %r", step)
                return
            if self._broker.delivers_again(run):
                self._log.error("Task %s[%s] is left to the broker: %r", run.request.name, run.request.id, error)
                self._held.release(run, State.GONE)
                return
            self._log.error("Task %s[%s] waits here: %r", run.request.name, run.request.id, error)
            self._held.pause([run], State.BACKEND_AWAY, PAUSE, again or self._held.wait_first)

    def _fail_by(self, step: Callable[[Run], None], run: Run, error: Exception) -> None:
        if run.request.acknowledged:
            logger.error("celery_throttle: error in %r", step, exc_info=error)
        else:
            logger.error("Task %s[%s] cannot start: %r", run.request.name, run.id, error)
            self.fail(run, error)

    def fail(self, run: Run, error: Exception, again: Callable[[list[Run]], None] | None = None) -> None:
        """End a run that did not start."""
        self._held.release(run, State.GONE)
        self.attempt(lambda run: self._fail_now(run, error), run, again)

    def fail_over(self, run: Run, error: Exception) -> None:
        """End a finished run with an error, later if the backend is away; the caller reports its facts to the store."""

        def later(runs: list[Run]) -> None:
            for each in runs:
                self.fail(each, error, later)

        self.attempt(lambda run: fail_or_reject(run.request, error), run, later)

    def _fail_now(self, run: Run, error: Exception) -> None:
        fail_or_reject(run.request, error)
        self._never_runs(run)  # else the store, which has no report of its end, would keep its lock until the ttl
