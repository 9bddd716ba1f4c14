"""Carry out calls at once, from any thread, with as little as possible between the caller and the socket."""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Any

from redis.exceptions import NoScriptError, RedisError, ResponseError

from celery_throttle.store.client import connection_factory
from celery_throttle.store.scripts import pack

if TYPE_CHECKING:
    from celery_throttle.store.scripts import Call

__all__ = ["Caller"]


class Caller:
    """A client for calls that a publish waits for: redis-py's connections without its client, which doubles their time.

    Keeps a connection for each thread that calls at the same time. Never sends a call twice.

    Args:
        url: of the store.
    """

    def __init__(self, url: str) -> None:
        self._make = connection_factory(url)
        self._free: deque[Any] = deque()
        self._process = os.getpid()

    def call(self, call: Call) -> Any:
        """Return the reply.

        Raises:
            redis.exceptions.RedisError: the store did not answer in time, or refused.
        """
        connection = self._connection()
        try:
            connection.send_packed_command([call.packed()], check_health=False)
            try:
                reply = connection.read_response()
            except NoScriptError:
                connection.send_packed_command([pack(call.eval())], check_health=False)
                reply = connection.read_response()
        except ResponseError:
            self._free.append(connection)
            raise
        except BaseException:
            # Whatever comes on this connection now would be the reply to something else.
            connection.disconnect()
            raise
        self._free.append(connection)
        return reply

    def _connection(self) -> Any:
        if self._process != os.getpid():
            # Forked: the connections are the parent's.
            self._process, self._free = os.getpid(), deque()
        while True:
            try:
                connection = self._free.pop()
            except IndexError:
                return self._make()
            if _stands(connection):
                return connection
            connection.disconnect()


def _stands(connection: Any) -> bool:
    try:
        # Something to read before anything was asked is the end of the connection.
        return not connection.can_read(timeout=0)
    except (RedisError, OSError):
        return False
