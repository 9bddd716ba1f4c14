"""What was read a moment ago, for all who look at the same: ten open pages cost the store no more than one."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

__all__ = ["Recent"]

T = TypeVar("T")

#: Different things that are kept at once.
_MOST = 16


class _Reading(NamedTuple):
    """A reading, under way or done, and when it began."""

    began: float
    result: Future[Any]


class Recent(Generic[T]):
    """Reads, and keeps what was read for a moment; safe to use in threads.

    Who asks while another reads the same waits for that one; an error is told to all who wait, and not kept.

    Args:
        read: reads it; of what is asked for, the arguments.
        seconds: for how long it is kept, from when reading it began.
    """

    def __init__(self, read: Callable[..., T], seconds: float = 1.0) -> None:
        self._read, self._seconds = read, seconds
        self._readings: dict[Hashable, _Reading] = {}
        self._lock = Lock()

    def __call__(self, *what: Hashable) -> T:
        """Return what is there, or was a moment ago."""
        now = monotonic()
        with self._lock:
            reading = self._readings.get(what)
            mine = reading is None or now - reading.began >= self._seconds
            if reading is None or mine:
                reading = self._begin(what, now)
        if mine:
            self._carry_out(what, reading)
        found: T = reading.result.result()
        return found

    def forget(self, **_: object) -> None:
        """Have it read again, since something was changed; also what is being read. A receiver of signals, too."""
        with self._lock:
            self._readings.clear()

    def _begin(self, what: Hashable, now: float) -> _Reading:
        self._readings.pop(what, None)  # the last in the order
        while len(self._readings) >= _MOST:
            del self._readings[next(iter(self._readings))]
        reading = self._readings[what] = _Reading(now, Future())
        return reading

    def _carry_out(self, what: tuple[Hashable, ...], reading: _Reading) -> None:
        try:
            reading.result.set_result(self._read(*what))
        except BaseException as error:  # noqa: BLE001 - raised by result(), here and wherever somebody waits for it
            with self._lock:
                if self._readings.get(what) is reading:
                    del self._readings[what]
            reading.result.set_exception(error)
