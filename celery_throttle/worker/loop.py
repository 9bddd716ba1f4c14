"""The event loop that the gate runs on: the worker's own hub, or a hub of ours where the worker has none.

Only code on this loop touches the gate's state. Other threads (pool threads, the timekeeper) `post` to the loop.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeVar

from kombu.asynchronous import Hub
from kombu.asynchronous.timer import Timer

from celery_throttle.worker.user_code import call, safely, start_thread

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Loop"]

logger = logging.getLogger(__name__)

T = TypeVar("T")


class _Watched:
    """A socket on the hub, by two duplicates of its descriptor: one to read, another to write.

    redis-py closes a socket that broke before we can take it off the hub. Another file may then have its number. If a
    process of the pool has inherited the socket, the kernel goes on to report its events; only a descriptor of the
    socket can end that. Both are made at once: a process that has no descriptor left cannot do without one in the
    middle of a write.
    """

    __slots__ = ("fd", "read", "write", "write_fd")

    def __init__(self, readable: Any, read: Callable[[], None]) -> None:
        self.fd, self.read = os.dup(readable.fileno()), read
        self.write: Callable[[], None] | None = None
        try:
            self.write_fd = os.dup(self.fd)
        except OSError:
            os.close(self.fd)
            raise

    def join(self, hub: Any) -> None:
        """Have a hub call back."""
        hub.add_reader(self.fd, self.read)
        if self.write is not None:
            hub.add_writer(self.write_fd, self.write)

    def on_writable(self, hub: Any, write: Callable[[], None] | None) -> None:
        """Have a hub call back when the socket takes data; None: no more."""
        if write is not None:
            hub.add_writer(self.write_fd, write)
        elif self.write is not None:
            hub.remove(self.write_fd)
        self.write = write

    def leave(self, hub: Any) -> None:
        """Have a hub call back no more."""
        hub.remove(self.fd)
        hub.remove(self.write_fd)


class Loop:
    """Runs posted functions and a tick on a kombu hub.

    The tick comes last in each turn of the hub, right before the hub waits for events. So all rows from the events of
    one turn are sent together.

    Args:
        hub: the hub to run on.
        threaded: whether the hub turns in a thread of ours, not in the thread that consumes messages.

    Attributes:
        hub: as given; after `detach` a hub of ours.
        threaded: whether the hub turns in a thread of ours.
        turning: whether posted functions or the tick are being run.
    """

    def __init__(self, hub: Any, *, threaded: bool) -> None:
        self.hub = hub
        self.threaded = threaded
        self._ticks: list[Callable[[], None]] = []
        self._posted: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._watched: dict[Any, _Watched] = {}
        self._wake_reader, self._wake_writer = socket.socketpair()
        self._wake_reader.setblocking(False)
        self._wake_writer.setblocking(False)
        self._awake = False
        self._home: int | None = None
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self.turning = False
        hub.on_tick.add(self.turn)
        # Not on the hub yet: until the worker's own loop begins, kombu before 5.7 fails on sockets of others.
        self._watched[self._wake_reader] = _Watched(self._wake_reader, self._drain_wakes)

    def every_turn(self, tick: Callable[[], None]) -> None:
        """Call a function once a turn, after all posted functions were run."""
        self._ticks.append(tick)

    def post(self, function: Callable[..., None], *args: Any) -> None:
        """Run a function on the loop, soon; from any thread."""
        self._posted.append((function, args))
        if self.turning or threading.get_ident() != self._home:
            self.wake()

    @property
    def posted(self) -> bool:
        """Whether a posted function waits for the next turn."""
        return bool(self._posted)

    def later(self, delay: float, function: Callable[[], None]) -> None:
        """Call the function on the loop after ``delay`` seconds, unless the broker connection is lost before."""
        self.hub.call_later(delay, function)

    def call(self, function: Callable[..., None], *args: Any) -> None:
        """Run a function for the consumer: at once if the loop lives in the calling thread."""
        if self.is_elsewhere:
            self.post(function, *args)
        else:
            function(*args)

    def ask(self, function: Callable[[], T], seconds: float) -> T:
        """Return the result of a function that reads the gate's state; call from any thread, which waits for it.

        Args:
            function: called on the loop.
            seconds: to wait at most.

        Raises:
            concurrent.futures.TimeoutError: the loop was busy for so long.
        """
        if not self.is_elsewhere:
            return function()
        answer: Future[T] = Future()
        self.post(_answer, answer, function)
        return answer.result(seconds)

    def wait(self, ready: Callable[[], bool], seconds: float) -> bool:
        """Wait in another thread until a condition holds after all functions posted so far; return False if time is up.

        Args:
            ready: the condition, called on the loop once a turn.
            seconds: to wait at most.
        """
        found = threading.Event()

        def look() -> None:
            if ready():
                found.set()

        self.post(self._ticks.append, look)
        held = found.wait(seconds)
        self.post(self._ticks.remove, look)
        return held

    @property
    def is_elsewhere(self) -> bool:
        """Whether the calling thread is another one than the loop's."""
        return self.threaded or (self._home is not None and threading.get_ident() != self._home)

    def wake(self) -> None:
        """Make the hub take another turn without waiting."""
        if not self._awake:
            self._awake = True
            try:
                self._wake_writer.send(b"\0")
            except OSError:
                logger.debug("wake-up lost: the loop is closing")

    def add_reader(self, readable: Any, callback: Callable[[], None]) -> None:
        """Call back whenever the socket has data to read, also after the hub starts over.

        Raises:
            OSError: the process has no descriptor left; nothing is kept then.
        """
        self._watched[readable] = watched = _Watched(readable, callback)
        try:
            watched.join(self.hub)
        except BaseException:
            self.remove_reader(readable)
            raise

    def remove_reader(self, readable: Any) -> None:
        """Stop calling back for a socket, which may be closed already."""
        watched = self._watched.pop(readable, None)
        if watched is not None:
            watched.leave(self.hub)
            os.close(watched.fd)
            os.close(watched.write_fd)

    def add_writer(self, writable: Any, callback: Callable[[], None]) -> None:
        """Call back whenever a socket that has a reader takes more data, also after the hub starts over."""
        self._watched[writable].on_writable(self.hub, callback)

    def remove_writer(self, writable: Any) -> None:
        """Stop calling back for a socket that takes data, if it has such a callback."""
        if (watched := self._watched.get(writable)) is not None:
            watched.on_writable(self.hub, None)

    def reattach(self) -> None:
        """Register all sockets again, because the worker's hub drops them when the broker connection is lost."""
        for watched in self._watched.values():
            safely(watched.join, self.hub)  # an error with one must not leave the others out

    def start(self) -> None:
        """Start the thread of a threaded loop."""
        if self.threaded:
            self._thread = start_thread(self._turn_on, "celery-throttle-gate")

    def detach(self) -> None:
        """Go on with a hub and a thread of our own, because the hub of a closing worker takes no more turns."""
        if self.threaded:
            return
        self.move(Hub(Timer()))
        self.threaded, self._home = True, None
        self.start()

    def move(self, hub: Any) -> None:
        """Go on with another hub, between two turns."""
        self.hub.on_tick.discard(self.turn)
        for watched in self._watched.values():
            watched.leave(self.hub)
        self.hub = hub
        self.hub.on_tick.add(self.turn)
        self.reattach()

    def _turn_on(self) -> None:
        while not self._stopped.is_set():
            self.hub.run_once()

    def stop(self, seconds: float) -> None:
        """End the thread after all posted functions were run; wait ``seconds`` for that at most."""
        if self._thread is not None:
            self.post(self._stopped.set)
            self.post(self.wake)  # else the hub waits for its next event, for up to a second
            self._thread.join(seconds)

    def turn(self) -> None:
        """Run the posted functions, then the ticks."""
        self._home = threading.get_ident()
        self.turning = True
        try:
            while self._posted:
                function, args = self._posted.popleft()
                safely(function, *args)
            for tick in self._ticks:
                safely(tick)
        finally:
            self.turning = False

    def pump(self) -> None:
        """Give a hub without a thread two turns, without waiting: the second acts on the events of the first."""
        for _ in range(2):
            self.wake()
            self.hub.run_once()

    def close(self) -> None:
        """Leave the hub."""
        self.hub.on_tick.discard(self.turn)
        for readable in list(self._watched):
            self.remove_reader(readable)
        self._wake_reader.close()
        self._wake_writer.close()

    def _drain_wakes(self) -> None:
        try:
            self._wake_reader.recv(4096)
        except BlockingIOError:
            logger.debug("woken for nothing")
        self._awake = False


def _answer(answer: Future[T], function: Callable[[], T]) -> None:
    try:
        answer.set_result(call(function))
    except Exception as error:  # noqa: BLE001 - raised again in the thread that asked
        answer.set_exception(error)
