"""Time, and code that waits, in the hands of the world: no sleeping, no threads."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from greenlet import greenlet  # type: ignore[import-untyped]

from tests.simulation.scene import ResultsAway

__all__ = ["Clock", "Fiber", "Loop", "Timekeeper", "wait"]

_BEGINNING_US = 1_800_000_000_000_000


class Clock:
    """The time for the store and all processes."""

    def __init__(self) -> None:
        self.now_us = _BEGINNING_US

    def reset(self) -> None:
        """Begin again."""
        self.now_us = _BEGINNING_US

    def monotonic(self) -> float:
        """As ``time.monotonic``."""
        return self.now_us / 1_000_000

    def after(self, seconds: float) -> int:
        """Return the time so many seconds from now, in microseconds."""
        return self.now_us + round(seconds * 1_000_000)


def wait(ready: Callable[[], bool], until_us: int) -> None:
    """Let the world go on until this is ready or that late; only inside of a `Fiber`."""
    greenlet.getcurrent().parent.switch((ready, until_us))


class Fiber:
    """Code that may `wait`, begun at once."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._greenlet = greenlet(function)
        self._waits: tuple[Callable[[], bool], int] | None = None
        self.go_on()

    @property
    def waits(self) -> bool:
        """Whether it has not ended."""
        return self._waits is not None

    def can_go_on(self, now_us: int) -> bool:
        """Return whether the awaited event is there, or it has waited for long enough."""
        return self._waits is not None and (self._waits[0]() or now_us >= self._waits[1])

    @property
    def until_us(self) -> int:
        """How long it waits at most."""
        return self._waits[1] if self._waits else 0

    def go_on(self) -> None:
        """Run until it waits (again) or ends; raise its exception here."""
        self._waits = None
        self._waits = self._greenlet.switch() or None


class Loop:
    """Replaces the loop of a worker's gate; the world turns it."""

    def __init__(self, clock: Clock, hub: Any, *, threaded: bool) -> None:
        self._clock, self.hub, self.threaded = clock, hub, threaded
        self._ticks: list[Callable[[], None]] = []
        self.posted: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.readers: dict[Any, Callable[[], None]] = {}
        self.turning = self.woken = False

    def every_turn(self, tick: Callable[[], None]) -> None:
        self._ticks.append(tick)

    def post(self, function: Callable[..., None], *args: Any) -> None:
        self.posted.append((function, args))

    def later(self, delay: float, function: Callable[[], None]) -> None:
        self.hub.call_later(delay, function)

    def call(self, function: Callable[..., None], *args: Any) -> None:
        function(*args)

    def wait(self, ready: Callable[[], bool], seconds: float) -> bool:
        """In the main thread, which is a `Fiber` then."""

        def held() -> bool:
            return not self.posted and ready()

        wait(held, self._clock.after(seconds))
        return held()

    def wake(self) -> None:
        self.woken = True

    @property
    def wanted(self) -> bool:
        """Whether it has something to do."""
        return bool(self.posted or self.woken)

    def add_reader(self, readable: Any, callback: Callable[[], None]) -> None:
        self.readers[readable] = callback

    def remove_reader(self, readable: Any) -> None:
        self.readers.pop(readable, None)

    def remove_writer(self, writable: Any) -> None:
        """Ignored, because the network takes all bytes at once."""

    def start(self) -> None:
        """Ignored, because the world turns it, and everything is always attached."""

    reattach = detach = start

    def stop(self, seconds: float) -> None:  # noqa: ARG002 - it does not wait
        self.turn()

    def turn(self) -> None:
        self.woken, self.turning = False, True
        try:
            while self.posted:
                function, args = self.posted.popleft()
                with suppress(ResultsAway):  # an error in one keeps no other from its turn
                    function(*args)
            for tick in self._ticks:
                tick()
        finally:
            self.turning = False

    def close(self) -> None:
        self.readers.clear()


class Timekeeper:
    """Stands where a worker's timekeeper does: its one thread is a `Fiber`."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        self._fiber = Fiber(lambda: None)
        self.stopped = False

    def start(self) -> None:
        """Ignored, because the world decides when it runs."""

    def stop(self) -> None:
        self.stopped = True
        self._due.clear()

    def later(self, delay: float, function: Callable[[], None]) -> None:
        if not self.stopped:
            self._count += 1
            heapq.heappush(self._due, (self._clock.after(delay), self._count, function))

    def every(self, interval: float, function: Callable[[], None]) -> None:
        def again() -> None:
            function()
            self.later(interval, again)

        self.later(interval, again)

    @property
    def next_us(self) -> int | None:
        """When it has something to do, if ever."""
        if self._fiber.waits:
            return self._clock.now_us if self._fiber.can_go_on(self._clock.now_us) else self._fiber.until_us
        return self._due[0][0] if self._due else None

    @property
    def is_due(self) -> bool:
        """Whether it has something to do now."""
        at = self.next_us
        return at is not None and at <= self._clock.now_us

    def run(self) -> None:
        """Do one thing that is due."""
        if self._fiber.waits:
            self._fiber.go_on()
        else:
            self._fiber = Fiber(heapq.heappop(self._due)[2])
