"""Call the store from any thread, with little overhead between the caller and the socket."""

from __future__ import annotations

import os
import select
from collections import deque
from contextlib import suppress
from socket import MSG_PEEK
from threading import Semaphore
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

from redis.connection import SSLConnection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from celery_throttle.store.scripts import pack
from celery_throttle.store.servers.client import connection_factory
from celery_throttle.store.servers.encryption import unreadable
from celery_throttle.store.servers.primary import elsewhere

if TYPE_CHECKING:
    from celery_throttle.core.keys import Keys
    from celery_throttle.store.scripts import Call

__all__ = ["CONNECTIONS", "IDLE", "Caller"]

#: The most connections of one client, as Celery's own default for the broker.
CONNECTIONS = 10
#: Seconds after which an idle connection is closed.
IDLE = 60.0
_ONE_PIECE = 4096
_poll = getattr(select, "poll", None)  # eventlet takes it away


class _Idle(NamedTuple):
    """An idle connection, the time of its last use, and whether the reply to a posted call is still to be read."""

    connection: Any
    since: float
    owes: bool


class Caller:
    """A client for the calls that a publish waits for.

    It uses the connections of redis-py without its client, because that client doubles the time of a call. It repeats a
    call only after a refusal, because another server has the keys or the server lacks the script.

    Args:
        url: see `StoreUrl`.
        keys: the keys of the calls; a cluster has them on one of its nodes.
        most: the most connections. Further threads wait for their turn. Idle connections are closed after a minute.
    """

    def __init__(self, url: str, keys: Keys | None = None, most: int = CONNECTIONS) -> None:
        self._make = connection_factory(url, keys)
        self._most = most
        self._begin()

    def _begin(self) -> None:
        #: Idle connections; the one used last is at the right end.
        self._free: deque[_Idle] = deque()
        self._turns = Semaphore(self._most)
        self._process = os.getpid()

    @property
    def turn(self) -> Semaphore:
        """A turn with one of the connections, for programs whose threads call: enter it, and call."""
        self._check_process()
        return self._turns

    def _check_process(self) -> None:
        if self._process != os.getpid():
            # The process was forked: connections and turns belong to threads of the parent.
            self._begin()

    def call(self, call: Call) -> Any:
        """Return the reply.

        Raises:
            redis.exceptions.RedisError: the store did not answer in time, or refused.
        """
        try:
            return self._call(call)
        except ResponseError as error:
            if not elsewhere(error):
                raise
        # A server that lost its role in a failover refused the call; all our connections may lead to that server.
        self._hang_up()
        return self._call(call)

    def post(self, call: Call) -> None:
        """Send a call without waiting for its reply, which the next call on the connection reads and drops.

        The call is lost if the server lacks its script, or refuses it.

        Raises:
            redis.exceptions.RedisError: the call could not be sent.
        """
        connection = self._connection()
        try:
            connection.send_packed_command([call.packed()], check_health=False)
        except BaseException:
            connection.disconnect()
            raise
        self._keep(connection, owes=True)

    def _call(self, call: Call) -> Any:
        connection = self._connection()
        try:
            connection.send_packed_command([call.packed()], check_health=False)
            try:
                reply = _reply(connection)
            except NoScriptError:
                connection.send_packed_command([pack(call.eval())], check_health=False)
                reply = connection.read_response()
        except ResponseError as error:
            if elsewhere(error):
                connection.disconnect()
            else:
                self._keep(connection)
            raise
        except BaseException:
            # The next reply on this connection would belong to this call, not to the next one.
            connection.disconnect()
            raise
        self._keep(connection)
        return reply

    def _keep(self, connection: Any, *, owes: bool = False) -> None:
        """Keep an idle connection for the next call, and close those that no call has needed for long."""
        now = monotonic()
        self._free.append(_Idle(connection, now, owes))
        with suppress(IndexError):  # another thread was quicker
            while self._free[0].since < now - IDLE:
                self._free.popleft().connection.disconnect()

    def _hang_up(self) -> None:
        with suppress(IndexError):  # another thread was quicker
            while self._free:
                self._free.pop().connection.disconnect()

    def _connection(self) -> Any:
        self._check_process()
        while True:
            try:
                connection, _, owes = self._free.pop()
            except IndexError:
                return _connected(self._make())
            if (not owes or _pays(connection)) and _stands(connection):
                return connection
            connection.disconnect()


def _pays(connection: Any) -> bool:
    """Read the reply to a posted call; return whether the connection can be used.

    Raises:
        redis.exceptions.TimeoutError: the server did not answer in time, so it would not answer the next call.
    """
    try:
        connection.read_response()
    except RedisTimeoutError:
        connection.disconnect()
        raise
    except ResponseError as error:
        return not elsewhere(error)
    except (RedisError, OSError):
        return False
    except BaseException:
        connection.disconnect()
        raise
    return True


def _connected(connection: Any) -> Any:
    """Return the connection, connected.

    A connection that redis-py opens by itself would not look for the primary, and its errors name no file.
    """
    try:
        connection.connect()
    except (RedisError, OSError) as error:
        if missing := unreadable(connection):
            raise RedisConnectionError(f"its URL {missing}") from error
        raise
    return connection


def _stands(connection: Any) -> bool:
    """Return whether the connection is open: an idle connection has data to read only if the server closed it."""
    try:
        if _poll is None:
            return not connection.can_read(timeout=0)
        readable = _poll()
        readable.register(connection._sock, select.POLLIN)  # noqa: SLF001  # as in wire.py
        return not readable.poll(0)
    except (RedisError, OSError, TypeError, ValueError):  # the last two: closed on our side
        return False


def _reply(connection: Any) -> Any:
    """Read a reply: a single text that arrives in one piece here, all other replies with redis-py."""
    if isinstance(connection, SSLConnection):  # a TLS socket cannot peek
        return connection.read_response()
    socket = connection._sock  # noqa: SLF001
    try:
        seen = socket.recv(_ONE_PIECE, MSG_PEEK)
    except TimeoutError:
        raise RedisTimeoutError("no answer in time") from None
    except OSError as error:
        raise RedisConnectionError(f"no answer: {error}") from error
    length, found, text = seen[1:-2].partition(b"\r\n")
    if seen[:1] != b"$" or seen[-2:] != b"\r\n" or not found or int(length) != len(text):
        return connection.read_response()
    socket.recv(len(seen))
    return text
