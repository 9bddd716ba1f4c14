"""Where a waiting program hears that its turn has come: a channel of its own, kept from one wait to the next."""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

__all__ = ["AsyncMailbox", "AsyncMailboxes", "Mailbox", "Mailboxes"]

#: Mailboxes that nobody uses at the moment; each is a connection.
IDLE = 8
#: Seconds between two attempts to subscribe.
_AGAIN = 0.2


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
            return _text(self._hints.get_message(timeout=timeout))
        except RedisError:
            self.close()
            time.sleep(min(timeout, _AGAIN))
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


class AsyncMailbox:
    """As `Mailbox`, on an asyncio client."""

    def __init__(self, client: AsyncRedis, channel: str) -> None:
        self.channel, self.loop = channel, asyncio.get_running_loop()
        self._hints: Any = client.pubsub()

    async def wait(self, timeout: float) -> str | None:
        """As `Mailbox.wait`."""
        try:
            if not self._hints.subscribed:
                await self._hints.subscribe(self.channel)
            return _text(await self._hints.get_message(timeout=timeout))
        except RedisError:
            await self.close()
            await asyncio.sleep(min(timeout, _AGAIN))
            return ""

    async def close(self) -> None:
        """As `Mailbox.close`."""
        await self._hints.aclose()


class AsyncMailboxes:
    """As `Mailboxes`, on an asyncio client; each event loop has its own connections."""

    def __init__(self, client: AsyncRedis, channel: Callable[[], str]) -> None:
        self._client, self._channel = client, channel
        self._idle: deque[AsyncMailbox] = deque()

    @asynccontextmanager
    async def one(self) -> AsyncIterator[AsyncMailbox]:
        """As `Mailboxes.one`."""
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

    def _take(self) -> AsyncMailbox:
        loop = asyncio.get_running_loop()
        while self._idle:
            mailbox = self._idle.pop()
            if mailbox.loop is loop:
                return mailbox
        return AsyncMailbox(self._client, self._channel())


def _text(message: dict[str, Any] | None) -> str | None:
    """Return what a message of redis-py says; '' if it is about the subscription."""
    if message is None:
        return None
    data = message["data"] if message["type"] == "message" else ""
    return data.decode() if isinstance(data, bytes) else str(data)
