"""Connections to the store that never make the loop wait.

A `Link` sends calls and receives their replies later; a `Listener` (`listener.py`) receives hints. Both connect in a
thread of their own, because connecting means waiting for the server, and a stopped server accepts connections but does
not answer.
"""

from __future__ import annotations

import logging
import ssl
import threading
from collections import deque
from time import monotonic
from typing import TYPE_CHECKING, Any

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_throttle.errors import StoreUnavailable
from celery_throttle.store.reading import UnreadableReply
from celery_throttle.store.scripts import pack
from celery_throttle.store.servers.client import TIMEOUT
from celery_throttle.store.servers.primary import elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.store.scripts import Argument, Call
    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.reported.paced_log import PacedLog
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["Link", "NoAnswer", "Wire", "call_back"]

logger = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 3.0
#: The errors of a socket that takes no more bytes now.
_FULL = (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError)


class NoAnswer(StoreUnavailable):
    """The connection stood, but no byte moved on it for too long."""


def call_back(callback: Callable[[Any], object], reply: Any) -> None:
    """Call back, and log an error, which has no bearing on the connection and must not end the worker's loop.

    Raises:
        UnreadableReply: the callback could not read the reply.
    """
    try:
        callback(reply)
    except UnreadableReply:
        raise
    except Exception:
        logger.exception("celery_throttle: error in %r", callback)


def _check_writes(connection: Any) -> None:
    """Raise the error of a server that takes no writes, because its disk takes none: it refuses a PING, too."""
    connection.send_command("PING")
    try:
        connection.read_response()
    except ResponseError as error:
        if elsewhere(error):
            raise


class Wire:
    """A connection that connects again by itself, within a third of a lease. `up` is True while it stands.

    Attributes:
        since: when it connected or broke last, on the clock of ``time.monotonic``.
    """

    def __init__(
        self, loop: Loop, timekeeper: Timekeeper, make: Callable[[], Any], lease: float, log: PacedLog
    ) -> None:
        self._loop, self._timekeeper, self._make, self._log = loop, timekeeper, make, log
        # So that permits are renewed in time once the server is back.
        self._longest_pause = min(_LONGEST_PAUSE, lease / 3)
        self._connection: Any = None
        self._socket: Any = None
        self._stale = False  # it broke during a write, and is dropped in the loop's next turn
        self._unsent: deque[memoryview] = deque()
        self._moved_at = monotonic()  # when bytes were last sent or received, or the first call was sent
        self._pause = _FIRST_PAUSE
        self._closed = False
        self.since = monotonic()

    @property
    def up(self) -> bool:
        return self._connection is not None and not self._stale

    def connect(self) -> None:
        """Connect in the background."""
        threading.Thread(target=self._connect, name="celery-throttle-connect", daemon=True).start()

    def hurry(self) -> None:
        """Connect now, if there is no connection, rather than after a pause."""
        if not self.up and not self._closed:
            self.connect()

    def close(self) -> None:
        """Close the connection for good."""
        self._closed = True
        self._drop()

    def _connect(self) -> None:
        connection = self._make()
        try:
            connection.connect()
            _check_writes(connection)
        except (RedisError, OSError) as error:
            connection.disconnect()
            self._loop.post(self._failed, error)
        else:
            self._loop.post(self._connected, connection)

    def _failed(self, error: Exception) -> None:
        if self._closed:
            return
        self._connect_later()  # first, because the callback may fail
        self._unreachable(error)

    def _connect_later(self) -> None:
        # The pause starts over with the first good reply, not with the connection: a server that is loading its data
        # accepts connections, and a server that became a replica refuses all calls.
        self._timekeeper.later(self._pause, self.connect)
        self._pause = min(self._pause * 2, self._longest_pause)

    def _connected(self, connection: Any) -> None:
        if self._closed or self._connection is not None:  # another attempt was quicker
            connection.disconnect()
            return
        self._connection, self.since = connection, monotonic()
        self._socket = connection._sock  # noqa: SLF001  # the event loop needs the socket; kombu does the same
        # With TLS the socket may have bytes to read that are no reply, and reading would wait for one.
        tls = isinstance(self._socket, ssl.SSLSocket)
        self._loop.add_reader(self._socket, self.read if tls else self._readable)
        self._greet()

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._stale = False
        self._unsent.clear()
        if connection is not None:
            self.since = monotonic()
            self._loop.remove_writer(self._socket)
            self._loop.remove_reader(self._socket)
            connection.disconnect()

    def _lost(self, error: Exception) -> None:
        """Drop a connection that broke, and connect again; fail the calls that wait on it."""
        if self._connection is not None:
            self._drop()
            if not self._closed:
                self._connect_later()
            self._broken(error)

    def _write(self, packed: bytes) -> None:
        """Send a packed command as the network takes its bytes, or find that the connection is gone.

        A loss is handled in the loop's next turn, because the caller may be in the middle of a change. Until then
        nothing more is written.
        """
        if self.up:
            self._unsent.append(memoryview(packed))
            if len(self._unsent) == 1:
                self._send_on()

    def _send_on(self) -> None:
        try:
            while self._unsent:
                piece = self._unsent[0]
                taken = self._send_now(piece)
                if taken < len(piece):
                    self._unsent[0] = piece[taken:]
                else:
                    self._unsent.popleft()
        except _FULL:
            self._loop.remove_writer(self._socket)
            self._loop.add_writer(self._socket, self._send_on)
        except (RedisError, OSError) as error:
            self._unsent.clear()
            self._loop.remove_writer(self._socket)
            self._stale = True
            self._loop.post(self._lost, error)
        else:
            self._loop.remove_writer(self._socket)

    def _send_now(self, piece: memoryview) -> int:
        """Send bytes without waiting; return how many of them the network took."""
        before = self._socket.gettimeout()
        self._socket.settimeout(0)
        try:
            taken: int = self._socket.send(piece)
        finally:
            self._socket.settimeout(before)
        self._moved_at = monotonic()
        return taken

    def read(self) -> None:
        """Take in all replies that have arrived, if any."""
        self._read(asked=False)

    def _readable(self) -> None:
        """Take in all replies that have arrived, after the loop found the socket readable."""
        self._read(asked=True)

    def _read(self, *, asked: bool) -> None:
        try:
            while self.up:
                if not asked and not self._connection.can_read(timeout=0):
                    return
                asked = False
                reply = self._next_reply()
                if not isinstance(reply, RedisError):
                    self._pause = _FIRST_PAUSE
                self._received(reply)
                if elsewhere(reply):
                    # Not the primary, or no more. The new primary may have the same name, so connect again.
                    self._lost(reply)
                if not self._expecting():
                    return
        except UnreadableReply as error:
            # The next bytes on this connection could be read as the reply to another call. Connect after a pause: the
            # next answer may be unreadable, too.
            self._log.error("celery_throttle: %s; the call is sent again on another connection", error)
            self._pause = self._longest_pause
            self._lost(error)
        except (RedisError, OSError) as error:
            self._lost(error)

    def _next_reply(self) -> Any:
        try:
            return self._connection.read_response()
        except ResponseError as error:  # the server's answer; other errors come from the connection
            return error
        except (RedisError, OSError):
            raise
        except Exception as error:
            raise UnreadableReply(f"the store's reply cannot be read: {type(error).__name__}: {error}") from error

    def _greet(self) -> None:
        """Called when the connection stands."""

    def _unreachable(self, error: Exception) -> None:
        """Called when connecting failed."""

    def _broken(self, error: Exception) -> None:
        """Called when the connection broke."""

    def _expecting(self) -> bool:
        """Return whether more replies may have arrived, which saves a call to the socket."""
        return True

    def _received(self, reply: Any) -> None:
        """Called with each reply."""


class Link(Wire):
    """Sends calls to scripts; each reply goes to its callback, in order.

    A callback gets the reply, a `RedisError` when the server refused the call (which had no effect), or a
    `StoreUnavailable` when it is unknown whether the call had one. If the callback raises `UnreadableReply`, the reply
    counts as lost.

    Args:
        lease: seconds that a permit lasts.
        log: for replies that cannot be read.
        on_up: called when the connection stands.
        on_broken: called when the connection broke, after the callbacks of all calls under way.
        on_unreachable: called each time connecting fails.
    """

    def __init__(
        self,
        loop: Loop,
        timekeeper: Timekeeper,
        make: Callable[[], Any],
        lease: float,
        log: PacedLog,
        on_up: Callable[[], None],
        on_broken: Callable[[Exception], None],
        on_unreachable: Callable[[Exception], None],
    ) -> None:
        super().__init__(loop, timekeeper, make, lease, log)
        self._on_up, self._on_broken, self._on_unreachable = on_up, on_broken, on_unreachable
        #: The calls under way, each with its callback and the seconds of silence after which it counts as lost.
        self._pending: deque[tuple[Call | None, Callable[[Any], object], float]] = deque()
        timekeeper.every(TIMEOUT / 4, lambda: loop.post(self._check_silence))

    def send(
        self,
        call: Call,
        callback: Callable[[Any], object],
        *more: tuple[Call, Callable[[Any], object]],
        patience: float = TIMEOUT,
    ) -> None:
        """Send a call, and more of them in the same write; the connection must be up.

        The connection counts as lost when no byte has moved for ``patience`` seconds. Sent bytes may still be on their
        way, in the buffers of a proxy, say, so a large call may need more patience.
        """
        if not more:
            self._send(call, call.packed(), callback, patience)
            return
        calls = [(call, callback), *more]
        packed = b"".join([each.packed() for each, _ in calls])  # first: an error here must leave no call to wait for
        self._expect(*((each, received, patience) for each, received in calls))
        self._write(packed)

    def wait(self, command: tuple[Argument, ...], seconds: float, callback: Callable[[Any], object]) -> None:
        """Send a command that the server takes so many seconds to answer; the connection must be up."""
        self._send(None, pack(command), callback, seconds + TIMEOUT)

    @property
    def answered(self) -> bool:
        """Whether no call waits for its reply."""
        return not self._pending

    def _send(self, call: Call | None, packed: bytes, callback: Callable[[Any], object], patience: float) -> None:
        self._expect((call, callback, patience))
        self._write(packed)

    def _expect(self, *replies: tuple[Call | None, Callable[[Any], object], float]) -> None:
        if not self._pending:
            self._moved_at = monotonic()
        self._pending.extend(replies)

    def _expecting(self) -> bool:
        return bool(self._pending)

    def _received(self, reply: Any) -> None:
        if not self._pending:
            raise RedisConnectionError(f"a reply without a call: {reply!r}")
        self._moved_at = monotonic()
        call, callback, patience = self._pending.popleft()
        if isinstance(reply, NoScriptError) and call is not None:
            self._send(call, pack(call.eval()), callback, patience)
        else:
            call_back(callback, reply)

    def _check_silence(self) -> None:
        # The loop itself may have been busy: first send the bytes that wait, and take in the replies that arrived.
        if self._silent:
            if self._unsent:
                self._send_on()
            self.read()
            if self._silent:
                self._lost(RedisTimeoutError(f"no answer within {self._pending[0][2]:g} s"))

    @property
    def _silent(self) -> bool:
        return bool(self._pending) and monotonic() > self._moved_at + self._pending[0][2]

    def _greet(self) -> None:
        self._on_up()

    def _unreachable(self, error: Exception) -> None:
        self._on_unreachable(error)

    def _broken(self, error: Exception) -> None:
        pending, self._pending = self._pending, deque()
        lost = NoAnswer if isinstance(error, RedisTimeoutError) else StoreUnavailable
        for _, callback, _ in pending:
            call_back(callback, lost(str(error)))
        self._on_broken(error)
