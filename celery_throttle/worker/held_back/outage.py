"""What happens to throttled tasks while the store is out of reach."""

from __future__ import annotations

import logging
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING

from celery_throttle.errors import StoreUnavailable
from celery_throttle.worker.celery_side.prefetch import Extra

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.core.settings import StoreErrorAction
    from celery_throttle.worker.runs import Run

__all__ = ["Outage"]

logger = logging.getLogger(__name__)


#: Seconds after which an outage that goes on is told of again.
_SAY_EVERY = 60.0
#: Tasks held here; all others stay in the broker.
_HELD_MOST = 1000
_SAID: dict[StoreErrorAction, str] = {
    "hold": "throttled tasks wait, unacknowledged, until it is back",
    "run": "throttled tasks run without a permit",
    "fail": "throttled tasks fail",
}


class Outage:
    """Holds the tasks that wait for the store, without a slot and unacknowledged, or deals with them otherwise.

    Right after the connection broke everything is held, since it may be back in a moment; what ``action`` says begins
    when connecting failed.

    Args:
        action: what the user wants: hold, run or fail.
        execute: starts a run.
        fail: ends a run that did not start with an error.
        change: called with how many more messages the broker may deliver, so that plain tasks of the same queue go
            on while throttled ones are held.
    """

    def __init__(
        self,
        action: StoreErrorAction,
        execute: Callable[[Run], None],
        fail: Callable[[Run, Exception], None],
        change: Callable[[int], None],
    ) -> None:
        self._action, self._execute, self._fail = action, execute, fail
        self._more = Extra(change, _HELD_MOST)
        self._held: deque[Run] = deque()
        self._unreachable = False
        self._said_at = 0.0

    def meet(self, run: Run) -> None:
        """Take a run that needs the store now."""
        if self.waits:
            self._held.append(run)
            self._more.hold(len(self._held))
        elif self._action == "run":
            logger.warning("Task %s[%s] runs without a permit", run.request.name, run.request.id)
            self._execute(run)
        else:
            self._fail(run, StoreUnavailable("no permit: the store is out of reach, throttle_on_store_error is 'fail'"))

    def unreachable(self, error: Exception) -> None:
        """Connecting failed."""
        if not self._unreachable or monotonic() - self._said_at >= _SAY_EVERY:
            still, self._said_at = "still " if self._unreachable else "", monotonic()
            said = _SAID[self._action]
            if still and self._action == "hold":
                said = f"{said}; {len(self._held)} wait here"
            logger.error("celery_throttle: %scannot reach the store (%s): %s", still, error, said)
        self._unreachable = True
        if self._action != "hold":
            for run in self._take_held():
                self.meet(run)

    def over(self) -> list[Run]:
        """The store is back; return what was held, oldest first."""
        if self._unreachable:
            logger.info("celery_throttle: the store is back")
        self._unreachable = False
        return self._take_held()

    def forget(self) -> list[Run]:
        """The broker will deliver again what is held; return it."""
        held = list(self._held)
        self._held.clear()
        self._more.forget()
        return held

    @property
    def held(self) -> tuple[Run, ...]:
        """Those that came before, oldest first."""
        return tuple(self._held)

    @property
    def holds(self) -> bool:
        """Whether it has some."""
        return bool(self._held)

    @property
    def waits(self) -> bool:
        """Whether tasks wait for the store, however long it takes."""
        return not self._unreachable or self._action == "hold"

    def _take_held(self) -> list[Run]:
        held, self._held = list(self._held), deque()
        self._more.hold(0)
        return held
