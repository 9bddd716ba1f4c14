"""The fair semaphore for asyncio, with the scripts and the line of the sync one."""

from __future__ import annotations

import asyncio
import time
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from celery_throttle.core.wrong_calls import constructor_with_fixes
from celery_throttle.primitives.checks import checked_client, patience, shown
from celery_throttle.primitives.elsewhere import SEMAPHORE
from celery_throttle.primitives.lease.aio import AsyncHeld, in_background
from celery_throttle.primitives.lease.base import logger, next_look
from celery_throttle.primitives.semaphore.aio_mailbox import AsyncMailboxes
from celery_throttle.primitives.semaphore.calls import (
    STAY,
    Granted,
    SemaphoreCalls,
    SemaphoreState,
    answer,
    hinted,
    not_acquired,
    state,
)
from celery_throttle.store.scripts import execute_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from redis.asyncio import Redis

    from celery_throttle.primitives.semaphore.aio_mailbox import AsyncMailbox
    from celery_throttle.primitives.semaphore.calls import PermitInfo, Turn, Waits

__all__ = ["AsyncFairSemaphore", "AsyncHeldPermit"]


class AsyncHeldPermit(AsyncHeld):
    """As `HeldPermit`, for ``async with``; ``renew`` and ``release`` are awaited."""

    def __init__(
        self,
        client: Redis,
        calls: SemaphoreCalls,
        turn: Turn,
        granted: Granted,
        on_lost: Callable[[AsyncHeldPermit], object] | None,
    ) -> None:
        super().__init__(
            client,
            calls.name,
            turn.holder,
            seconds=turn.lease,
            deadline=granted.deadline,
            on_lost=on_lost,
            renewal=partial(calls.renew, turn),
            giving_back=partial(calls.release, turn),
        )
        self.name, self.holder, self.ticket = calls.name, turn.holder, granted.ticket


@constructor_with_fixes(**SEMAPHORE)
class AsyncFairSemaphore:
    """As `FairSemaphore`, on an asyncio client; both may be used on one name, and share one line.

    ::

        from redis.asyncio import Redis

        from celery_throttle.primitives import AsyncFairSemaphore

        async def encode(client: Redis) -> int:
            encoders = AsyncFairSemaphore(client, "encoders", 3)
            async with encoders.hold("web-1", timeout=30, renew=True) as permit:
                return permit.ticket

    Args:
        client: a client of redis.asyncio; closing it also closes the connections that are kept from earlier waits.
        name: the name of the semaphore.
        limit: number of permits, unless one is set with `set_limit`.
        lease: how many seconds a permit lasts unless it is renewed, by default.
        prefix: the beginning of all keys.

    Raises:
        ConfigurationError: an argument cannot work; all methods raise it, too.

    Warning:
        As `FairSemaphore`. Also, renewal is a task of the event loop: code that blocks the loop for longer than two
        thirds of the lease loses the permit. For a cancelled acquire, a background task leaves the line, or releases a
        permit that was just granted. If the loop ends before that, the permit lasts until the end of its lease.
    """

    def __init__(self, client: Redis, name: str, limit: int, lease: float = 60.0, *, prefix: str = "throttle") -> None:
        self._client = checked_client(client, awaits=True)
        self._calls = SemaphoreCalls(prefix, name, limit, lease)
        self._mailboxes = AsyncMailboxes(client, self._calls.channel)

    def __repr__(self) -> str:
        return f"<AsyncFairSemaphore {shown(self._calls.name)}>"

    async def acquire(
        self,
        holder: str | None = None,
        timeout: float | None = None,
        lease: float | None = None,
        *,
        blocking: bool = True,
        renew: bool = False,
        on_lost: Callable[[AsyncHeldPermit], object] | None = None,
    ) -> AsyncHeldPermit | None:
        """As `FairSemaphore.acquire`; a task renews, and ``on_lost`` is called in the event loop."""
        wait = patience(blocking, timeout)
        turn = self._calls.turn(holder, lease)
        try:
            granted = await self._wait(turn, time.monotonic() + wait) if wait else (await self._ask(turn))[0]
        except asyncio.CancelledError:
            in_background(self._withdraw(turn))
            raise
        if not isinstance(granted, Granted):
            return None
        held = AsyncHeldPermit(self._client, self._calls, turn, granted, on_lost)
        if renew:
            held.keep()
        return held

    @asynccontextmanager
    async def hold(
        self,
        holder: str | None = None,
        timeout: float | None = None,
        lease: float | None = None,
        *,
        renew: bool = False,
        on_lost: Callable[[AsyncHeldPermit], object] | None = None,
    ) -> AsyncIterator[AsyncHeldPermit]:
        """As `FairSemaphore.hold`."""
        held = await self.acquire(holder, timeout, lease, renew=renew, on_lost=on_lost)
        if held is None:
            raise not_acquired(self._calls.name, timeout)
        async with held:
            yield held

    async def limit(self) -> int:
        """As `FairSemaphore.limit`."""
        return (await self._look()).limit

    async def set_limit(self, limit: int | None) -> None:
        """As `FairSemaphore.set_limit`."""
        call = self._calls.set_limit(limit)
        while await execute_async(self._client, call):
            pass

    async def holders(self) -> tuple[PermitInfo, ...]:
        """As `FairSemaphore.holders`."""
        return state(await execute_async(self._client, self._calls.look_at_all())).holders

    async def waiting(self) -> int:
        """As `FairSemaphore.waiting`."""
        return (await self._look()).waiting

    async def _look(self) -> SemaphoreState:
        return state(await execute_async(self._client, self._calls.look()))

    async def _ask(self, turn: Turn, stay: float = 0, channel: str = "") -> tuple[Granted | Waits | None, float]:
        asked_at = time.monotonic()
        raw = await execute_async(self._client, self._calls.acquire(turn, stay, channel))
        return answer(raw, turn, asked_at), asked_at

    async def _wait(self, turn: Turn, deadline: float) -> Granted | None:
        async with self._mailboxes.one() as mailbox:
            return await self._wait_at(mailbox, turn, deadline)

    async def _wait_at(self, mailbox: AsyncMailbox, turn: Turn, deadline: float) -> Granted | None:
        while True:
            stay = STAY if time.monotonic() < deadline else 0
            found, asked_at = await self._ask(turn, stay, mailbox.channel)
            if found is None or isinstance(found, Granted):
                return found
            hint = await mailbox.wait(min(max(deadline - time.monotonic(), 0), next_look(found.lease_left)))
            if granted := hinted(hint, turn, found, asked_at):
                return granted

    async def _withdraw(self, turn: Turn) -> None:
        """Leave the line, or release the permit that a cancelled call may have got."""
        try:
            await execute_async(self._client, self._calls.release(turn))
        except RedisError as error:
            logger.warning("celery_throttle: cannot leave the line of %s: %s", shown(self._calls.name), error)
