"""Mailboxes: the channel on which a waiting call gets the hint that its permit is granted, kept for later waits."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from celery_throttle.primitives.driving import settled

#: Most mailboxes that are kept while they are not used; each is a connection.
IDLE = 8
#: Seconds between two attempts to subscribe.
_AGAIN = 0.2

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

__all__ = ["Mailbox", "Mailboxes"]


class Mailbox:
    """One channel, subscribed at the first wait; ``place``: the process or the event loop that has the connection."""

    def __init__(self, client: Any, channel: str, place: object, *, awaits: bool) -> None:
        self.channel, self.place, self._awaits = channel, place, awaits
        self._hints: Any = client.pubsub()

    async def wait(self, timeout: float) -> str | None:
        """Return the next hint; None after ``timeout`` seconds.

        '' is returned after a subscription and after a failed connection: earlier hints may be lost, so the caller must
        ask the store. If the server is away, that call raises the error.
        """
        try:
            if not self._hints.subscribed:
                await settled(self._hints.subscribe(self.channel))
            return _hint_in(await settled(self._hints.get_message(timeout=timeout)))
        except RedisError:
            await self.close()
            await settled((asyncio if self._awaits else time).sleep(min(timeout, _AGAIN)))
            return ""

    async def close(self) -> None:
        """Close the connection; from then on the store sees that the channel has no subscriber."""
        await settled(self._hints.aclose() if self._awaits else self._hints.close())


class Mailboxes:
    """Keeps mailboxes for later waits, because connecting and subscribing takes longer than most waits.

    Args:
        client: makes the connections; they belong to its pool.
        channel: returns a new name of a channel.
        awaits: whether the client is for asyncio.
    """

    def __init__(self, client: Any, channel: Callable[[], str], *, awaits: bool) -> None:
        self._client, self._channel, self._awaits = client, channel, awaits
        self._idle: deque[Mailbox] = deque()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[Mailbox]:
        """Yield a mailbox, and keep it for later; after an error it is closed."""
        mailbox = self._take()
        try:
            yield mailbox
        except BaseException:
            await mailbox.close()
            raise
        if len(self._idle) < IDLE:
            self._idle.append(mailbox)
        else:
            await mailbox.close()

    def _take(self) -> Mailbox:
        # A forked process must not use the connections of its parent, nor a loop those of another one.
        place: object = asyncio.get_running_loop() if self._awaits else os.getpid()
        while True:
            try:
                mailbox = self._idle.pop()
            except IndexError:
                return Mailbox(self._client, self._channel(), place, awaits=self._awaits)
            if mailbox.place == place:
                return mailbox


def _hint_in(message: dict[str, Any] | None) -> str | None:
    """Return the text of a message of redis-py; '' if the message is about the subscription."""
    if message is None:
        return None
    data = message["data"] if message["type"] == "message" else ""
    return data.decode() if isinstance(data, bytes) else str(data)
