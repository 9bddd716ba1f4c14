"""Mailboxes for asyncio: the channel on which a waiting task gets the hint that its permit is granted."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from celery_throttle.primitives.semaphore.calls import AGAIN, IDLE, hint_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from redis.asyncio import Redis

__all__ = ["AsyncMailbox", "AsyncMailboxes"]


class AsyncMailbox:
    """As `Mailbox`, on an asyncio client."""

    def __init__(self, client: Redis, channel: str) -> None:
        self.channel, self.loop = channel, asyncio.get_running_loop()
        self._hints: Any = client.pubsub()

    async def wait(self, timeout: float) -> str | None:
        """As `Mailbox.wait`."""
        try:
            if not self._hints.subscribed:
                await self._hints.subscribe(self.channel)
            return hint_in(await self._hints.get_message(timeout=timeout))
        except RedisError:
            await self.close()
            await asyncio.sleep(min(timeout, AGAIN))
            return ""

    async def close(self) -> None:
        """As `Mailbox.close`."""
        await self._hints.aclose()


class AsyncMailboxes:
    """As `Mailboxes`, on an asyncio client; each event loop has its own connections."""

    def __init__(self, client: Redis, channel: Callable[[], str]) -> None:
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
