"""Mailboxes: the channel on which a waiting call gets the hint that its permit is granted, kept for later waits."""

from __future__ import annotations

import os
import time
from collections import deque
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from celery_throttle.primitives.semaphore.calls import AGAIN, IDLE, hint_in

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis import Redis

__all__ = ["Mailbox", "Mailboxes"]


class Mailbox:
    """One channel, subscribed at the first wait."""

    def __init__(self, client: Redis, channel: str) -> None:
        self.channel = channel
        self._hints: Any = client.pubsub()  # type: ignore[no-untyped-call]

    def wait(self, timeout: float) -> str | None:
        """Return the next hint; None after ``timeout`` seconds.

        '' is returned after a subscription and after a failed connection: earlier hints may be lost, so the caller must
        ask the store. If the server is away, that call raises the error.
        """
        try:
            if not self._hints.subscribed:
                self._hints.subscribe(self.channel)
            return hint_in(self._hints.get_message(timeout=timeout))
        except RedisError:
            self.close()
            time.sleep(min(timeout, AGAIN))
            return ""

    def close(self) -> None:
        """Close the connection; from then on the store sees that the channel has no subscriber."""
        self._hints.close()


class Mailboxes:
    """Keeps mailboxes for later waits, because connecting and subscribing takes longer than most waits.

    Args:
        client: makes the connections; they belong to its pool.
        channel: returns a new name of a channel.
    """

    def __init__(self, client: Redis, channel: Callable[[], str]) -> None:
        self._client, self._channel = client, channel
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._idle: deque[Mailbox] = deque()

    @contextmanager
    def one(self) -> Iterator[Mailbox]:
        """Yield a mailbox, and keep it for later; after an error it is closed."""
        mailbox = self._take()
        try:
            yield mailbox
        except BaseException:
            mailbox.close()
            raise
        if len(self._idle) < IDLE:
            self._idle.append(mailbox)
        else:
            mailbox.close()

    def _take(self) -> Mailbox:
        if self._pid != os.getpid():
            self._begin()  # forked: the connections belong to the parent
        try:
            return self._idle.pop()
        except IndexError:
            return Mailbox(self._client, self._channel())
