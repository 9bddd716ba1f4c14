"""A thread that takes turns while there is work, and is started again by the next caller if it has ended."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from celery_throttle.errors import StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.permits.bell import Bell

__all__ = ["Turns"]

logger = logging.getLogger(__name__)

#: Seconds for which the thread stays when there is no work.
_LINGER = 1.0
#: Seconds until the next turn after one that raised.
_AGAIN = 0.5


class Turns:
    """Takes turns in a thread.

    Args:
        turn: does what is due, given whether a hint came; returns the seconds until the next turn, at the latest.
        has_work: returns whether the thread has to stay; called under the guard.
        bell: wakes the thread.
        guard: held by callers from `begin` until their work is there.
    """

    def __init__(
        self, turn: Callable[[bool], float], has_work: Callable[[], bool], bell: Bell, guard: threading.Lock
    ) -> None:
        self._turn, self._has_work, self._bell, self._guard = turn, has_work, bell, guard
        self._thread: threading.Thread | None = None

    def begin(self) -> None:
        """Start the thread unless it lives; under the guard.

        Raises:
            StoreUnavailable: no thread can be started.
        """
        if self._thread is not None and self._thread.is_alive():
            return
        self._thread = threading.Thread(target=self._run, name="celery-throttle-permits", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise StoreUnavailable(f"no thread for permits can be started: {error}") from error

    def go_on(self) -> None:
        """Wake the thread, or start it; if none can be started, the next caller tries again."""
        with self._guard, suppress(StoreUnavailable):
            self.begin()
        self._bell.ring()

    def _run(self) -> None:
        busy_at, hinted = time.monotonic(), False
        while True:
            hinted = self._take_one(hinted)
            with self._guard:
                if self._has_work():
                    busy_at = time.monotonic()
                elif time.monotonic() - busy_at >= _LINGER:
                    self._thread = None
                    break
        self._bell.hang_up()

    def _take_one(self, hinted: bool) -> bool:
        """Take a turn, and sleep until the next one; return whether a hint came. No error ends the thread."""
        try:
            return self._bell.sleep(min(self._turn(hinted), _LINGER))
        except Exception:
            logger.exception("celery_throttle: error among permits outside of tasks")
            time.sleep(_AGAIN)
            return False
