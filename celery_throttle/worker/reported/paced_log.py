"""Log lines that may come many times a second, as about a store that is cut off: one a second with a count."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["EVERY", "OncePerSecond", "PacedLog", "and_more"]

logger = logging.getLogger(__name__)

#: Seconds between two lines of one kind.
EVERY = 1.0


def and_more(others: int) -> str:
    """Return the end of a line that stands for others, too."""
    return f"; and {others} more in the last second" if others else ""


class OncePerSecond:
    """Counts events; writes the first at once, then once a second the last one with the number of the others.

    Args:
        later: calls a function after `EVERY` seconds.
        write: called with the arguments of the last event, and the number of the others.
    """

    def __init__(self, later: Callable[[Callable[[], None]], None], write: Callable[..., None]) -> None:
        self._later, self._write = later, write
        self._guard = threading.Lock()
        self._counted = 0
        self._last: tuple[Any, ...] = ()
        self._timed = self._closed = False

    def close(self) -> None:
        """Write nothing more."""
        self._closed = True

    def count(self, *last: Any) -> None:
        """Count an event, from any thread."""
        with self._guard:
            self._counted, self._last = self._counted + 1, last
            if self._timed:
                return
            self._timed = True
        self.flush()

    def flush(self) -> None:
        """Write the last event now, if it was not written."""
        with self._guard:
            counted, self._counted = self._counted, 0
            last, self._last = self._last, ()
            self._timed = counted > 0 and not self._closed
        if self._timed:
            self._later(self.flush)
            self._write(*last, counted - 1)


class PacedLog:
    """Logs lines of several kinds, each once a second at most, and all at the level DEBUG; from any thread.

    Args:
        timekeeper: calls each second, also while the loop is busy.
    """

    def __init__(self, timekeeper: Timekeeper) -> None:
        self._later = partial(timekeeper.later, EVERY)
        self._kinds: dict[object, OncePerSecond] = {}

    def info(self, text: str, *args: object, kind: object = None) -> None:
        """Log what has changed for the better; see `warning`."""
        self._count(kind, logging.INFO, text, args)

    def warning(self, text: str, *args: object, kind: object = None) -> None:
        """Log a line; all lines with this text are of one kind, unless ``kind`` joins them with others."""
        self._count(kind, logging.WARNING, text, args)

    def error(self, text: str, *args: object, kind: object = None) -> None:
        """Log an error; see `warning`."""
        self._count(kind, logging.ERROR, text, args)

    def close(self) -> None:
        """Log what waits for its second, because the timekeeper has stopped."""
        for each in self._kinds.copy().values():
            each.flush()

    def _count(self, kind: object, level: int, text: str, args: tuple[object, ...]) -> None:
        logger.debug(text, *args)
        self._kinds.setdefault(kind or text, OncePerSecond(self._later, _write)).count(level, text, args)


def _write(level: int, text: str, args: tuple[object, ...], others: int) -> None:
    with_count = f"{text}%s"  # with the arguments apart, by which tools group lines
    logger.log(level, with_count, *args, and_more(others))
