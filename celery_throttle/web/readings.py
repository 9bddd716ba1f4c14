"""Readings that pages and visitors share, kept for a moment: ten open pages cost the store no more than one."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from starlette.concurrency import run_in_threadpool

from celery_throttle.control.checks import diagnose, report
from celery_throttle.signals import limit_changed
from celery_throttle.web.fleet import fleet
from celery_throttle.web.overview import overview

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from celery_throttle.control.findings import Commands

__all__ = ["Readings", "Recent"]

T = TypeVar("T")

#: A task that has waited for longer is an alarm, as in `celery throttle report`.
_PATIENCE = timedelta(minutes=10)
#: Seconds for which a verdict and a diagnosis are kept.
_KEPT = 3.0
#: Most readings that are kept.
_MOST = 16


class _Reading(NamedTuple):
    """A reading, under way or done, with the time of its start."""

    began: float
    result: Future[Any]


class Recent(Generic[T]):
    """Reads, and keeps each result for a moment; safe to use in threads.

    A call during a reading with the same arguments waits for that one. An error is raised in all waiting calls, and not
    kept.

    ``read`` gets the arguments of the call. ``seconds``: how long a result is kept, from the start of its reading.
    ``one_at_a_time``: whether a call always waits for a reading under way, even an old one; for readings that ask
    workers.
    """

    def __init__(self, read: Callable[..., T], seconds: float = 1.0, *, one_at_a_time: bool = False) -> None:
        self._read, self._seconds, self._one_at_a_time = read, seconds, one_at_a_time
        self._readings: dict[Hashable, _Reading] = {}
        self._lock = Lock()

    def __call__(self, *what: Hashable) -> T:
        """Return a result that is at most ``seconds`` old."""
        reading, mine = self._reading_of(what)
        if mine:
            self._carry_out(what, reading)
        found: T = reading.result.result()
        return found

    def last(self, within: float) -> T | None:
        """Return the last result if its reading began less than ``within`` seconds ago, without reading; else None."""
        with self._lock:
            done = [each for each in self._readings.values() if each.result.done()]
        latest = max(done, key=lambda each: each.began, default=None)
        if latest is None or monotonic() - latest.began >= within or latest.result.exception():
            return None
        found: T = latest.result.result()
        return found

    async def without_thread(self, *what: Hashable) -> T:
        """Return the same in a coroutine; a call that waits for another one's reading takes no thread from others."""
        reading, mine = self._reading_of(what)
        if mine:
            await run_in_threadpool(self._carry_out, what, reading)
        # Shielded, so that a cancelled call does not cancel the result for other calls.
        found: T = await asyncio.shield(asyncio.wrap_future(reading.result))
        return found

    def forget(self) -> None:
        """Drop all results after a change, also those of readings under way."""
        with self._lock:
            self._readings.clear()

    def _reading_of(self, what: tuple[Hashable, ...]) -> tuple[_Reading, bool]:
        """Return the reading to wait for, and whether the caller has to carry it out."""
        now = monotonic()
        with self._lock:
            reading = self._readings.get(what)
            if reading and (now - reading.began < self._seconds or (self._one_at_a_time and not reading.result.done())):
                return reading, False
            return self._begin(what, now), True

    def _begin(self, what: Hashable, now: float) -> _Reading:
        self._readings.pop(what, None)  # so that the new one becomes the last in the order
        while len(self._readings) >= _MOST:
            del self._readings[next(iter(self._readings))]
        reading = self._readings[what] = _Reading(now, Future())
        return reading

    def _carry_out(self, what: tuple[Hashable, ...], reading: _Reading) -> None:
        try:
            reading.result.set_result(self._read(*what))
        except BaseException as error:  # noqa: BLE001 - raised by result(), in this call and in all waiting ones
            with self._lock:
                if self._readings.get(what) is reading:
                    del self._readings[what]
            reading.result.set_exception(error)


class Readings:
    """Reads an app's store, workers and servers.

    ``overview``: the states of the limits, for a part of their names and a number of rows. ``verdict``: the report.
    ``diagnosis``: the findings about the set-up. ``fleet``: workers, queues and records set aside. The verdict and the
    fleet ask the workers.
    """

    def __init__(self, app: Any, commands: Commands) -> None:
        self.overview = Recent(partial(overview, app))
        self.verdict = Recent(partial(report, app, commands, _PATIENCE), _KEPT, one_at_a_time=True)
        self.fleet = Recent(partial(fleet, app), _KEPT, one_at_a_time=True)
        self.diagnosis = Recent(partial(diagnose, app, commands), _KEPT, one_at_a_time=True)
        # Celery before 5.7 takes the bound methods of two pages for one receiver.
        limit_changed.connect(self.forget, dispatch_uid=str(id(self)))

    def forget(self, **_: object) -> None:
        """Drop all readings after a change, so that the next request reads again. Also a receiver of signals."""
        for each in (self.overview, self.verdict, self.diagnosis, self.fleet):
            each.forget()
