"""Hold, run or fail throttled tasks while the store is out of reach."""

from __future__ import annotations

from time import monotonic
from typing import TYPE_CHECKING

from celery_throttle.errors import StoreUnavailable
from celery_throttle.worker.runs import UNDECIDED, State

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from celery_throttle.core.settings import StoreErrorAction
    from celery_throttle.worker.held_back.held_back import HeldBack
    from celery_throttle.worker.reported.paced_log import PacedLog
    from celery_throttle.worker.runs import Run

__all__ = ["Outage"]

#: Seconds after which an outage that goes on is logged again.
_LOG_EVERY = 60.0
_LOGGED: dict[StoreErrorAction, str] = {
    "hold": "throttled tasks wait, unacknowledged, until it is back",
    "run": "throttled tasks run without a permit",
    "fail": "throttled tasks fail",
}


class Outage:
    """Holds the runs of a group that need its store, without a slot, or takes another action; all on the loop.

    Right after the connection broke all runs are held, because it may be back in a moment. The user's action begins
    when a new connection fails.

    Args:
        group: the name of the group.
        action: ``throttle_on_store_error``: hold, run or fail.
        held: holds the runs.
        execute: starts a run.
        fail: ends a run with an error before it has started.
        log: for its lines.
    """

    def __init__(
        self,
        group: str,
        action: StoreErrorAction,
        held: HeldBack,
        execute: Callable[[Run], None],
        fail: Callable[[Run, Exception], None],
        log: PacedLog,
    ) -> None:
        self._group, self._action, self._held, self._execute, self._fail = group, action, held, execute, fail
        self._log = log
        self._kind = "reach", group  # one kind, so that the last line is the present state
        self._unreachable = False
        self._logged_at = 0.0

    @property
    def holds(self) -> bool:
        """Whether it holds runs."""
        return self._held.has(State.STORE_AWAY, self._group)

    def meet(self, run: Run) -> None:
        """Hold a run that needs the store now, or take the user's action."""
        if not self._unreachable or self._action == "hold":
            self._held.hold(run, State.STORE_AWAY)
            return
        self._held.release(run, State.GONE)
        if self._action == "run":
            self._log.warning("Task %s[%s] runs without a permit", run.request.name, run.request.id)
            self._execute(run)
        else:
            self._fail(run, StoreUnavailable("no permit: the store is out of reach, throttle_on_store_error is 'fail'"))

    def _meet_again(self, run: Run) -> None:
        if run in self._held:  # else the worker has begun to stop
            self.meet(run)

    def begin(self, error: Exception, unsent: Collection[Run]) -> None:
        """Hold all runs that wait for an answer, without a slot, because the connection broke.

        ``unsent``: the runs that no call has.
        """
        self._log.warning("celery_throttle: lost the store, connecting again: %s", error)
        for run in self._held.of(*UNDECIDED, group=self._group):
            if run in unsent:
                self._meet_again(run)
            elif run in self._held:  # its call is sent again, and is answered later
                asks = run.state in (State.ASKING, State.UNSURE)
                self._held.hold(run, State.UNSURE if asks else State.MAYBE_PARKED)

    def unreachable(self, error: Exception) -> None:
        """Log that connecting failed, and take the user's action for the runs that are held."""
        if not self._unreachable or monotonic() - self._logged_at >= _LOG_EVERY:
            still, self._logged_at = "still " if self._unreachable else "", monotonic()
            logged = _LOGGED[self._action]
            if still and self._action == "hold":
                logged = f"{logged}; {len(self._held.of(State.STORE_AWAY, group=self._group))} wait here"
            text = "celery_throttle: %scannot reach the store (%s): %s"
            self._log.error(text, still, error, logged, kind=self._kind)
        self._unreachable = True
        if self._action != "hold":
            # A run whose parking is under way still waits for the answer, because the store may have it.
            for run in self._held.of(State.STORE_AWAY, State.ASKING, State.UNSURE, group=self._group):
                self._meet_again(run)

    def over(self) -> None:
        """Have the held runs wait for a slot before all others, because the store is back."""
        if self._unreachable:
            self._log.info("celery_throttle: the store is back", kind=self._kind)
        self._unreachable = False
        self._held.wait_first(self._held.of(State.STORE_AWAY, group=self._group))
