"""Where a waiting program hears that its turn has come: a channel of its own, kept from one wait to the next."""

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
    """One channel, subscribed when it is first waited at."""

    def __init__(self, client: Redis, channel: str) -> None:
        self.channel = channel
        self._hints: Any = client.pubsub()  # type: ignore[no-untyped-call]

    def wait(self, timeout: float) -> str | None:
        """Return the next hint; None after ``timeout`` seconds.

        '' comes when the channel has just been subscribed, and after the connection failed: what was said before may
        have been said to nobody, so look. If the server is away, that look says so.
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
        """End the connection: from now on, the store sees that nobody listens."""
        self._hints.close()


class Mailboxes:
    """Keeps mailboxes for later: to connect and subscribe takes longer than most waits.

    Args:
        client: makes the connections; they belong to its pool.
        channel: makes a new name.
    """

    def __init__(self, client: Redis, channel: Callable[[], str]) -> None:
        self._client, self._channel = client, channel
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._idle: deque[Mailbox] = deque()

    @contextmanager
    def one(self) -> Iterator[Mailbox]:
        """Lend a mailbox; one whose user fails is closed."""
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
            self._begin()  # forked: the connections are the parent's
        try:
            return self._idle.pop()
        except IndexError:
            return Mailbox(self._client, self._channel())
