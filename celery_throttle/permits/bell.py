"""Wake the thread for permits outside of tasks: by a call in the process, or by a hint from the store."""

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

    from celery_throttle.core.sites import Sites

__all__ = ["Bell"]

#: Seconds until the next SUBSCRIBE after the store refused one, because its user has no right to hints.
_REFUSED = 10.0
#: Seconds between two looks where nothing can wake the thread.
_NO_SELECTOR = 0.05


class Bell:
    """A bell that any thread of the process rings, and the store's hints while this process is subscribed to them.

    Args:
        client: for the connection that listens.
        channel: of the hints.
        queue: of this process; hints that its tasks are ready count.
        sites: of this process; hints that they have room count.
    """

    def __init__(self, client: Redis, channel: str, queue: str, sites: Sites) -> None:
        self._client, self._channel, self._queue, self._sites = client, channel, queue, sites
        self._listening: Any = None
        self._refused_until = 0.0
        self._reader, self._writer = socket.socketpair()
        for end in (self._reader, self._writer):
            end.setblocking(False)  # a full pipe wakes the thread already
            finalize(self, end.close)

    def ring(self) -> None:
        """Wake the thread."""
        with suppress(OSError):
            self._writer.send(b"\0")

    def listen(self) -> bool:
        """Subscribe to hints; return whether the subscription is new, so that hints may have been missed before.

        Raises:
            StoreUnavailable: the store did not answer.
        """
        if self._listening is not None or time.monotonic() < self._refused_until:
            return False
        self._listening = self._client.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        try:
            self._listening.subscribe(self._channel)
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"the store did not answer, or refused: {error}") from error
        return True

    def hang_up(self) -> None:
        """End the subscription."""
        listening, self._listening = self._listening, None
        if listening is not None:
            with suppress(Exception):
                listening.close()

    def sleep(self, seconds: float) -> bool:
        """Sleep for some seconds, or until the bell rings; return whether a hint came."""
        hints = getattr(getattr(self._listening, "connection", None), "_sock", None)
        try:
            with selectors.DefaultSelector() as selector:
                for end in (self._reader, hints):
                    if end is not None:
                        selector.register(end, selectors.EVENT_READ)
                selector.select(seconds)
        except (OSError, ValueError):  # no descriptor is left, or the connection was closed
            time.sleep(min(seconds, _NO_SELECTOR))
        with suppress(OSError):
            self._reader.recv(4096)
        return self._take_hints()

    def _take_hints(self) -> bool:
        hinted = False
        try:
            while self._listening is not None and (message := self._listening.get_message(timeout=0)):
                hinted = hinted or self._counts(message["data"].decode(errors="replace"))  # any client may publish
        except ResponseError:
            self._refused_until = time.monotonic() + _REFUSED
            self.hang_up()
        except Exception:  # noqa: BLE001 - of the connection, or none that is known: the next one subscribes again
            self.hang_up()
        return hinted

    def _counts(self, hint: str) -> bool:
        kind, _, name = hint.partition(" ")
        if kind == "ready":
            return name == self._queue
        return kind == "due" or (kind == "site" and self._sites.has(name))
