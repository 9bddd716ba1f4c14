"""One attempt to connect, in a thread of its own: connecting waits for a server that may accept and not answer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from redis.exceptions import ResponseError

from celery_throttle.errors import StoreUnavailable
from celery_throttle.store.servers.primary import elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Attempt"]


class Attempt:
    """Connects once.

    Args:
        make: makes the connection.
        ended: called in the thread at the end. It only saves time: `over` is what counts.
    """

    def __init__(self, make: Callable[[], Any], ended: Callable[[], None]) -> None:
        self._make, self._ended = make, ended
        self._connection: Any = None
        self._error: Exception | None = None
        self._over = self._dropped = False
        self._thread = threading.Thread(target=self._run, name="celery-throttle-connect", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether it has ended, however that came about."""
        return self._over or not self._thread.is_alive()

    def connection(self) -> Any:
        """Return the connection; only when the attempt is over.

        Raises:
            Exception: the attempt failed.
        """
        if self._connection is not None:
            return self._connection
        raise self._error or StoreUnavailable("the thread that connects has ended")

    def drop(self) -> None:
        """Close its connection, now or at its end."""
        self._dropped = True
        if self._over and self._connection is not None:
            self._connection.disconnect()

    def _run(self) -> None:
        connection = None
        try:
            connection = self._make()
            connection.connect()
            _check_writes(connection)
            self._connection = connection
        except Exception as error:  # noqa: BLE001 - raised again by `connection`
            self._error = error
        finally:
            if connection is not None and self._connection is None:
                connection.disconnect()
            self._over = True
            if self._dropped:
                self.drop()
            self._ended()


def _check_writes(connection: Any) -> None:
    """Raise the error of a server that takes no writes, because its disk takes none: it refuses a PING, too."""
    connection.send_command("PING")
    try:
        connection.read_response()
    except ResponseError as error:
        if elsewhere(error):
            raise
