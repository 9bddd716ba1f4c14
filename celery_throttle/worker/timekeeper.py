"""One thread that calls functions at their time, also while the worker's own loop is busy."""

from __future__ import annotations

import heapq
import itertools
import threading
from time import monotonic
from typing import TYPE_CHECKING

from celery_throttle.worker.user_code import safely, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Timekeeper"]


class Timekeeper:
    """Calls functions later, in its own thread.

    The worker's timer will not do: Celery empties that timer when the broker connection is lost, and it stands still
    while a solo pool runs a task. Nor will a `celery.utils.timer2.Timer` of our own, which may sleep for two seconds
    past a call that is added and due sooner.
    """

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._stopped = False

    def start(self) -> None:
        """Start the thread."""
        start_thread(self._run, "celery-throttle-timekeeper")

    def later(self, delay: float, function: Callable[[], None]) -> None:
        """Call the function after ``delay`` seconds."""
        with self._changed:
            heapq.heappush(self._due, (monotonic() + delay, next(self._numbers), function))
            self._changed.notify()

    def every(self, interval: float, function: Callable[[], None]) -> None:
        """Call the function again and again, ``interval`` seconds apart."""

        def again() -> None:
            try:
                function()
            finally:
                self.later(interval, again)

        self.later(interval, again)

    def stop(self) -> None:
        """Stop the thread; no function is called any more."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def _run(self) -> None:
        while function := self._next():
            safely(function)

    def _next(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._stopped:
                if not self._due:
                    self._changed.wait()
                elif (left := self._due[0][0] - monotonic()) > 0:
                    self._changed.wait(left)
                else:
                    return heapq.heappop(self._due)[2]
        return None
