"""What the thread of a process sleeps on: the process itself wakes it, or a hint from the store."""

from __future__ import annotations

import selectors
import socket
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from weakref import finalize

from redis.exceptions import RedisError, ResponseError

from celery_throttle.errors import StoreUnavailable

if TYPE_CHECKING:
    from redis import Redis

__all__ = ["Bell"]

#: Seconds until it is tried again to listen to a store that has refused it: its user has no right to hints.
_REFUSED = 10.0


class Bell:
    """Rung by anybody in the process, and by the store while it is listened to.

    Args:
        client: for the connection that listens.
        channel: of the hints.
        hint: which of them counts.
    """

    def __init__(self, client: Redis, channel: str, hint: str) -> None:
        self._client, self._channel, self._hint = client, channel, hint.encode()
        self._listening: Any = None
        self._deaf_until = 0.0
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)  # a bell that has not been heard yet need not be rung again
            finalize(self, end.close)

    def ring(self) -> None:
        """Wake the thread."""
        with suppress(OSError):
            self._writer.send(b"\0")

    def listen(self) -> bool:
        """Listen to the store; whether that begins just now, so that a hint may have been missed.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        if self._listening is not None or time.monotonic() < self._deaf_until:
            return False
        self._listening = self._client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        try:
            self._listening.subscribe(self._channel)
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"the store did not answer, or refused: {error}") from error
        return True

    def hang_up(self) -> None:
        """Listen to the store no longer."""
        listening, self._listening = self._listening, None
        if listening is not None:
            with suppress(RedisError, OSError):
                listening.close()

    def sleep(self, seconds: float) -> bool:
        """Sleep so long, or until it rings; whether there was a hint."""
        hints = getattr(getattr(self._listening, "connection", None), "_sock", None)
        with suppress(OSError, ValueError), selectors.DefaultSelector() as selector:
            for end in (self._reader, hints):
                if end is not None:
                    selector.register(end, selectors.EVENT_READ)
            selector.select(seconds)
        with suppress(OSError):
            self._reader.recv(4096)
        return self._hear()

    def _hear(self) -> bool:
        heard = False
        try:
            while self._listening is not None and (said := self._listening.get_message(timeout=0)):
                heard = heard or said["data"] == self._hint
        except ResponseError:
            self._deaf_until = time.monotonic() + _REFUSED
            self.hang_up()
        except (RedisError, OSError):
            self.hang_up()
        return heard
