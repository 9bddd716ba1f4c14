"""Connections that look for the primary each time they connect: after a failover it is another server."""

from __future__ import annotations

import re
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar

from redis import Connection, SSLConnection
from redis.exceptions import ClusterDownError, MovedError, ReadOnlyError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from celery_throttle.core.store_url import Address

__all__ = ["Addresses", "SeekingConnection", "SeekingSSLConnection", "elsewhere", "moved_to"]

T = TypeVar("T")

#: Seconds after which no further address is tried: whoever connects tries again later, with the others first.
PATIENCE = 2.0
#: How many of the addresses that failed an error names.
SAID = 3

# redis-py before 6 knows these errors only in its own cluster client; Redis before 7 wraps what a script ran into.
_ELSEWHERE = re.compile(r"^(?:MOVED|CLUSTERDOWN|MASTERDOWN|NOREPLICAS|MISCONF) |-(?:READONLY|NOREPLICAS|MISCONF) ")


def elsewhere(error: object) -> bool:
    """Return whether a server refused a call because it takes no writes, or not these: it has no effect.

    The server is a replica, another node has the keys, or its disk takes nothing.
    """
    if isinstance(error, (ReadOnlyError, MovedError, ClusterDownError)):
        return True
    return isinstance(error, RedisError) and bool(_ELSEWHERE.search(str(error)))


def moved_to(error: ResponseError) -> Address | None:
    """Return where a node of a cluster says that the keys are; the host is empty if it is the one that was asked."""
    text = str(error)
    if not (isinstance(error, MovedError) or text.startswith("MOVED ")):
        return None
    host, _, port = text.rpartition(" ")[2].rpartition(":")
    return host, int(port)


class _Seeking:
    """What a connection does otherwise when it looks for its server; ``host`` and ``port`` are those found last.

    Args:
        seek: connects a connection, by its ``connect_to`` and ``ask``, to the server that has the keys. It raises a
            `redis.exceptions.RedisError` if there is no such server now.
        options: as of redis-py's class.
    """

    host, port = "", 0

    def __init__(self, *, seek: Callable[[Any], None], **options: Any) -> None:
        super().__init__(**options)
        self._seek = seek

    def connect(self: Any) -> None:
        """Find the server and connect to it; nothing happens if it stands already."""
        if self._sock is not None:
            return
        try:
            self._seek(self)
        except BaseException:
            self.disconnect()
            raise

    def connect_to(self: Any, host: str, port: int) -> None:
        """Connect to this server."""
        self.disconnect()
        self.host, self.port = host, port
        super().connect()  # type: ignore[misc]  # of redis-py's class behind this one

    def ask(self: Any, *command: Any) -> Any:
        """Send a command and return the reply."""
        self.send_command(*command)
        return self.read_response()


class SeekingConnection(_Seeking, Connection):
    """A connection that looks for its server."""


class SeekingSSLConnection(_Seeking, SSLConnection):
    """A connection that looks for its server and speaks TLS."""


class Addresses:
    """Addresses to try, the best one first. Threads may share it."""

    def __init__(self, addresses: Iterable[Address]) -> None:
        self._all = tuple(dict.fromkeys(addresses))

    def try_each(self, attempt: Callable[[str, int], T]) -> T:
        """Return what the first attempt returns that does not fail; the next time begins with that address.

        Raises:
            redis.exceptions.ConnectionError: all failed, or time is over; the next time begins with the others.
        """
        deadline = monotonic() + PATIENCE
        addresses, errors = self._all, []
        for number, (host, port) in enumerate(addresses):
            try:
                result = attempt(host, port)
            except (RedisError, OSError) as error:
                errors.append(f"{host}:{port}: {error}")
                if monotonic() > deadline:
                    self._all = addresses[number + 1 :] + addresses[: number + 1]
                    break
            else:
                self._all = (addresses[number], *addresses[:number], *addresses[number + 1 :])
                return result
        more = f"; and {len(errors) - SAID} more" if len(errors) > SAID else ""
        raise RedisConnectionError("; ".join(errors[:SAID]) + more)
