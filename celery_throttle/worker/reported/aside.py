"""Functions that must not keep their caller waiting, called one after the other in a thread of their own."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

from celery_throttle.worker.user_code import safely, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Aside"]

#: The most functions that wait; then the oldest are dropped.
_MOST = 1000


class Aside:
    """Calls functions in a thread that is there as long as there is one to call.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._waiting: deque[Callable[[], object]] = deque(maxlen=_MOST)
        self._thread: threading.Thread | None = None

    def call(self, function: Callable[[], object]) -> None:
        """Call a function soon; from any thread."""
        with self._lock:
            self._waiting.append(function)
            if self._thread is None:
                self._thread = start_thread(self._run, self._name)

    def finish(self, seconds: float) -> None:
        """Wait until nothing is left, for so many seconds at most; then drop the rest."""
        if (thread := self._thread) is not None:
            thread.join(seconds)
        with self._lock:
            self._waiting.clear()

    def _run(self) -> None:
        while (function := self._next()) is not None:
            safely(function)

    def _next(self) -> Callable[[], object] | None:
        with self._lock:
            if self._waiting:
                return self._waiting.popleft()
            self._thread = None
            return None
