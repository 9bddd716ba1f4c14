"""The identity lock for asyncio, with the scripts and answers of the sync one."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from celery_throttle.core.wrong_calls import constructor_with_fixes
from celery_throttle.errors import NotAcquired
from celery_throttle.primitives.checks import checked_client, patience, shown
from celery_throttle.primitives.elsewhere import LOCK
from celery_throttle.primitives.lease.aio import AsyncHeld, in_background
from celery_throttle.primitives.lease.base import logger, next_look
from celery_throttle.primitives.lock.calls import Grant, LockCalls, answer, info
from celery_throttle.store.scripts import execute_async

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from redis.asyncio import Redis

    from celery_throttle.primitives.lock.calls import Answer, Attempt, LockInfo

__all__ = ["AsyncHeldLock", "AsyncIdentityLock"]


class AsyncHeldLock(AsyncHeld):
    """As `HeldLock`, for ``async with``; ``renew`` and ``release`` are awaited."""

    def __init__(
        self,
        client: Redis,
        calls: LockCalls,
        attempt: Attempt,
        *,
        fencing_token: int,
        deadline: float,
        on_lost: Callable[[AsyncHeldLock], object] | None,
    ) -> None:
        grant = Grant(attempt.key, attempt.owner, fencing_token)
        super().__init__(
            client,
            attempt.identity,
            attempt.owner,
            seconds=attempt.lease,
            deadline=deadline,
            on_lost=on_lost,
            renewal=partial(calls.renew, grant),
            giving_back=partial(calls.release, grant),
        )
        self.fencing_token = fencing_token


@constructor_with_fixes(**LOCK)
class AsyncIdentityLock:
    """As `IdentityLock`, on an asyncio client; both may be used on one prefix.

    ::

        from redis.asyncio import Redis

        from celery_throttle.primitives import AsyncIdentityLock

        async def pay(client: Redis) -> int:
            locks = AsyncIdentityLock(client)
            async with locks.hold("order 17", timeout=5, renew=True) as held:
                return held.fencing_token

    Args:
        client: a client of redis.asyncio.
        prefix: the beginning of all keys; objects with the same prefix share locks and tokens.
        lease: how many seconds a lock lasts unless it is renewed, by default.

    Raises:
        ConfigurationError: an argument cannot work; all methods raise it, too.

    Warning:
        As `IdentityLock`. Also, renewal is a task of the event loop: code that blocks the loop for longer than two
        thirds of the lease loses the lock. A cancelled acquire may have got the lock; a background task then releases
        the lock. If the loop ends before that, the lock lasts until the end of its lease.
    """

    def __init__(self, client: Redis, *, prefix: str = "throttle", lease: float = 60.0) -> None:
        self._client = checked_client(client, awaits=True)
        self._calls = LockCalls(prefix, lease)

    async def acquire(
        self,
        identity: str | bytes,
        lease: float | None = None,
        *,
        owner: str | None = None,
        blocking: bool = False,
        timeout: float | None = None,
        renew: bool = False,
        on_lost: Callable[[AsyncHeldLock], object] | None = None,
    ) -> AsyncHeldLock | None:
        """As `IdentityLock.acquire`; a task renews, and ``on_lost`` is called in the event loop."""
        wait = patience(blocking, timeout)
        attempt = self._calls.acquire(identity, lease, owner)
        try:
            got = await self._attempt(attempt, on_lost)
            held = got if isinstance(got, AsyncHeldLock) else None
            if held is None and wait:
                held = await self._wait(attempt, time.monotonic() + wait, on_lost)
        except asyncio.CancelledError:
            # An owner that was given may have had the lock before, so only a lock with a new owner is released.
            if owner is None:
                in_background(self._undo(attempt))
            raise
        if held is not None and renew:
            held.keep()
        return held

    @asynccontextmanager
    async def hold(
        self,
        identity: str | bytes,
        lease: float | None = None,
        *,
        owner: str | None = None,
        timeout: float | None = None,
        renew: bool = False,
        on_lost: Callable[[AsyncHeldLock], object] | None = None,
    ) -> AsyncIterator[AsyncHeldLock]:
        """As `IdentityLock.hold`."""
        held = await self.acquire(
            identity, lease, owner=owner, blocking=True, timeout=timeout, renew=renew, on_lost=on_lost
        )
        if held is None:
            raise NotAcquired(f"{shown(identity)} was held by another owner for {timeout} seconds")
        async with held:
            yield held

    async def locked_by(self, identity: str | bytes) -> LockInfo | None:
        """As `IdentityLock.locked_by`."""
        return info(await execute_async(self._client, self._calls.look(identity)))

    async def forget(self, identity: str | bytes, fencing_token: int) -> bool:
        """As `IdentityLock.forget`."""
        return bool(await execute_async(self._client, self._calls.forget(identity, fencing_token)))

    async def _attempt(
        self, attempt: Attempt, on_lost: Callable[[AsyncHeldLock], object] | None
    ) -> AsyncHeldLock | Answer:
        started = time.monotonic()
        got = answer(await execute_async(self._client, attempt.call))
        if not got.granted:
            return got
        return AsyncHeldLock(
            self._client,
            self._calls,
            attempt,
            fencing_token=got.holder.fencing_token,
            deadline=started + attempt.lease,
            on_lost=on_lost,
        )

    async def _wait(
        self, attempt: Attempt, deadline: float, on_lost: Callable[[AsyncHeldLock], object] | None
    ) -> AsyncHeldLock | None:
        async with aclosing(self._client.pubsub(ignore_subscribe_messages=True)) as hints:
            await hints.subscribe(attempt.key)
            while True:
                # The first message confirms the subscription. The attempt after it finds an earlier release.
                held = await self._attempt(attempt, on_lost)
                left = deadline - time.monotonic()
                if isinstance(held, AsyncHeldLock):
                    return held
                if left <= 0:
                    return None
                await hints.get_message(timeout=min(left, next_look(held.holder.lease_left)))

    async def _undo(self, attempt: Attempt) -> None:
        """Release the lock that a cancelled call may have got."""
        try:
            await execute_async(self._client, self._calls.release(Grant(attempt.key, attempt.owner, None)))
        except RedisError as error:
            logger.warning("celery_throttle: cannot release %s: %s", shown(attempt.identity), error)
