"""A connection to the store that never makes the loop wait, and that comes back whatever ends it.

Nothing here relies on one event after another. A `look`, for which the timekeeper asks again and again, begins an
attempt to connect whenever there is no connection and no attempt under way. An event only asks for that look earlier.
So an error at any line leaves a state from which the next look goes on.
"""

from __future__ import annotations

import logging
import math
import ssl
from collections import deque
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError, ResponseError

from celery_throttle.store.reading import UnreadableReply
from celery_throttle.store.servers.client import TIMEOUT
from celery_throttle.store.servers.primary import elsewhere
from celery_throttle.worker.store_side.connecting import Attempt
from celery_throttle.worker.user_code import safely

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.reported.paced_log import PacedLog
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["Wire", "call_back"]

logger = logging.getLogger(__name__)

_FIRST_PAUSE, _LONGEST_PAUSE = 0.05, 3.0
#: Seconds between two looks.
_LOOK_EVERY = TIMEOUT / 4
#: The errors of a socket that takes no more bytes now.
_FULL = (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError)


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
        self._greeted = False
        self._attempt: Attempt | None = None
        self._next_at = math.inf  # from when on an attempt may begin
        self._stale: Exception | None = None  # the error of a write, after which the next look drops the connection
        self._unsent: deque[memoryview] = deque()
        self._moved_at = monotonic()  # when bytes were last sent or received, or the first call was sent
        self._pause = _FIRST_PAUSE
        self._closed = False
        self.since = monotonic()
        timekeeper.every(_LOOK_EVERY, self._look_soon)

    @property
    def up(self) -> bool:
        """Whether it is connected, on the hub and greeted, as far as is known."""
        return self._greeted and self._writable

    @property
    def _writable(self) -> bool:
        return self._connection is not None and self._stale is None

    def connect(self) -> None:
        """Connect in the background, if there is no connection, without a pause before that."""
        if not self._writable:
            self._next_at = 0.0
            self.look()

    def close(self) -> None:
        """Close the connection for good."""
        self._closed = True
        self._drop()
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.drop()

    def start_over(self, error: Exception, *, slowly: bool = False) -> None:
        """Drop the connection, and connect again.

        Args:
            error: why, for those who wait for a reply.
            slowly: after the longest pause, because the next connection may end in the same way.
        """
        if slowly:
            self._pause = self._longest_pause
        self._lost(error)

    def look(self) -> None:
        """Do what the present state asks for: drop a broken connection, take a new one, or begin to connect."""
        if self._closed:
            return
        if self._stale is not None:
            self._lost(self._stale)
        if self._attempt is not None and self._attempt.over:
            self._take()
        if self._connection is not None:
            self._tend()
        elif self._attempt is None and monotonic() >= self._next_at:
            self._begin()

    def _look_soon(self) -> None:
        self._loop.post(self.look)

    def _begin(self) -> None:
        try:
            self._attempt = Attempt(self._make, self._look_soon)
        except Exception as error:  # noqa: BLE001 - no thread can be started now
            self._failed(error)

    def _take(self) -> None:
        attempt, self._attempt = self._attempt, None
        try:
            connection = attempt.connection() if attempt is not None else None
        except Exception as error:  # noqa: BLE001 - whatever it is, the next attempt comes after a pause
            self._failed(error)
            return
        try:
            self._stand(connection)
        except Exception as error:
            logger.exception("celery_throttle: a new connection to the store cannot be used")
            self._lost(error)
            safely(self._unreachable, error)

    def _stand(self, connection: Any) -> None:
        self._connection, self.since = connection, monotonic()
        self._socket = connection._sock  # noqa: SLF001  # the event loop needs the socket; kombu does the same
        # With TLS the socket may have bytes to read that are no reply, and reading would wait for one.
        tls = isinstance(self._socket, ssl.SSLSocket)
        self._loop.add_reader(self._socket, partial(self.read, asked=not tls))
        self._greet()
        self._greeted = True

    def _failed(self, error: Exception) -> None:
        self._rest()
        safely(self._unreachable, error)

    def _rest(self) -> None:
        """Let some time go by before the next attempt.

        The pause starts over with the first good reply, not with the connection: a server that is loading its data
        accepts connections, and a server that became a replica refuses all calls.
        """
        pause, self._pause = self._pause, min(self._pause * 2, self._longest_pause)
        self._next_at = monotonic() + pause
        self._timekeeper.later(pause, self._look_soon)

    def _drop(self) -> None:
        connection, self._connection = self._connection, None
        self._stale, self._greeted = None, False
        self._unsent.clear()
        if connection is not None:
            self.since = monotonic()
            self._loop.remove_reader(self._socket)
            connection.disconnect()

    def _lost(self, error: Exception) -> None:
        """Drop a connection that broke, to connect again; fail the calls that wait on it."""
        if self._connection is not None:
            self._rest()
            safely(self._drop)
            safely(self._broken, error)

    def _write(self, packed: bytes) -> None:
        """Send a packed command as the network takes its bytes, or find that the connection is gone.

        A loss is handled in the loop's next turn, because the caller may be in the middle of a change. Until then
        nothing more is written.
        """
        if self._writable:
            self._unsent.append(memoryview(packed))
            if len(self._unsent) == 1:
                self._send_on()

    def _send_on(self) -> None:
        try:
            if self._send_all():
                self._loop.remove_writer(self._socket)
            else:
                self._loop.add_writer(self._socket, self._send_on)
        except Exception as error:  # noqa: BLE001 - of the connection, or of the hub
            self._stale = error
            self._unsent.clear()
            self._look_soon()

    def _send_all(self) -> bool:
        """Send what the network takes; return whether that is all."""
        try:
            while self._unsent:
                piece = self._unsent[0]
                taken = self._send_now(piece)
                if taken < len(piece):
                    self._unsent[0] = piece[taken:]
                else:
                    self._unsent.popleft()
        except _FULL:
            return False
        return True

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

    def read(self, *, asked: bool = False) -> None:
        """Take in all replies that have arrived, if any; ``asked``: the loop has found the socket readable."""
        try:
            while self._writable:
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
            # The next bytes on this connection could be read as the reply to another call.
            self._log.error("celery_throttle: %s; the call is sent again on another connection", error)
            self.start_over(error, slowly=True)
        except Exception as error:  # noqa: BLE001 - of the connection, or none that is known
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
        """Called when the connection is there: `up` after that."""

    def _tend(self) -> None:
        """Called in each look while there is a connection."""

    def _unreachable(self, error: Exception) -> None:
        """Called when connecting failed."""

    def _broken(self, error: Exception) -> None:
        """Called when the connection broke."""

    def _expecting(self) -> bool:
        """Return whether more replies may have arrived, which saves a call to the socket."""
        return True

    def _received(self, reply: Any) -> None:
        """Called with each reply."""
