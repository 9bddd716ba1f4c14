"""Locks on the majority of several independent servers, for asyncio."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from celery_throttle.core.wrong_calls import constructor_with_fixes
from celery_throttle.errors import NotAcquired, StoreUnavailable
from celery_throttle.primitives.checks import milliseconds, patience, shown
from celery_throttle.primitives.elsewhere import REDLOCK
from celery_throttle.primitives.lease.aio import AsyncRenewableLease
from celery_throttle.primitives.lock.calls import Grant, LockCalls
from celery_throttle.primitives.redlock.aio_nodes import AsyncNode, ask, deliver
from celery_throttle.primitives.redlock.votes import (
    RETRY,
    Votes,
    check_servers,
    checked_drift,
    ended,
    ends_sooner,
    granted,
    still_held,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from redis.asyncio import Redis

    from celery_throttle.primitives.lock.calls import Attempt
    from celery_throttle.store.scripts import Call

__all__ = ["AsyncHeldRedlock", "AsyncRedlock"]


class AsyncQuorum:
    """As `Quorum`, on asyncio clients."""

    def __init__(self, clients: Sequence[Redis], node_timeout: float) -> None:
        self._nodes = [AsyncNode(client) for client in clients]
        self._timeout = node_timeout
        self._votes = Votes(len(clients), node_timeout)

    async def take(self, call: Call) -> bool:
        """As `Quorum.take`."""
        question = ask(self._nodes, call, self._timeout)
        taken = False
        try:
            taken = self._votes.taken(await question.wait(self._timeout, self._votes.decided(granted)))
        finally:
            if not taken:
                question.withdraw()
        return taken

    async def keep(self, call: Call) -> bool:
        """As `Quorum.keep`."""
        question = ask(self._nodes, call, self._timeout)
        replies = await question.wait(self._timeout, self._votes.decided(still_held))
        return self._votes.verdict(replies, still_held)

    async def give_back(self, call: Call, lease: float) -> bool:
        """As `Quorum.give_back`."""
        replies = await deliver(self._nodes, call, lease).wait(self._timeout, self._votes.decided(ended))
        return self._votes.verdict(replies, ended)

    def give_back_later(self, call: Call, lease: float) -> None:
        """As `Quorum.give_back_later`."""
        deliver(self._nodes, call, lease)


class AsyncHeldRedlock(AsyncRenewableLease):
    """As `HeldRedlock`, for ``async with``; ``renew`` and ``release`` are awaited."""

    def __init__(
        self,
        lock: AsyncRedlock,
        attempt: Attempt,
        *,
        deadline: float,
        on_lost: Callable[[AsyncHeldRedlock], object] | None,
    ) -> None:
        super().__init__(attempt.identity, attempt.owner, seconds=attempt.lease, deadline=deadline, on_lost=on_lost)
        self._lock, self._key = lock, attempt.key

    async def renew(self, lease: float | None = None) -> bool:
        """As `HeldRedlock.renew`."""
        self._check_held()
        seconds = self._seconds if lease is None else lease
        call = self._lock.calls.acquire(self.identity, seconds, self.owner).call
        started = time.monotonic()
        if not await self._lock.quorum.keep(call):
            self._check_held()  # a release during the call is no loss
            raise self._lose()
        self._seconds = seconds
        self._deadline = max(self._deadline, started + seconds - self._lock.drift(seconds))
        return True

    async def release(self) -> bool:
        """As `HeldRedlock.release`."""
        self._releasing = True
        if self._released is None:
            released = await self._lock.quorum.give_back(self._giving_back(), self._seconds)
            if not released:
                self._lose()
            self._released = released
        return self._released

    def _giving_back(self) -> Call:
        return self._lock.calls.release(Grant(self._key, self.owner, None))


@constructor_with_fixes(**REDLOCK)
class AsyncRedlock:
    """As `Redlock`, on asyncio clients; both may be used on the same servers.

    ::

        from redis.asyncio import Redis

        from celery_throttle.primitives import AsyncRedlock

        async def report(clients: list[Redis]) -> bool:
            locks = AsyncRedlock(clients)
            async with locks.hold("nightly report", timeout=5, renew=True) as held:
                return not held.lost

    Args:
        clients: one client of redis.asyncio for each server, with a short ``socket_timeout`` and no retries.
        prefix: the beginning of all keys.
        lease: how long a lock lasts unless it is renewed, by default.
        node_timeout: how long to wait for a server; short beside the lease.
        drift: how far the servers' clocks may run apart during a lease, as a part of the lease.

    Raises:
        ConfigurationError: an argument cannot work; all methods raise it, too.

    Warning:
        As `Redlock`: **no fencing token**, so the lock saves work, but proves nothing to the resource. Also, a task of
        the event loop sends a release again that a server could not take, and releases after a cancelled acquire. If
        the loop ends before that, the lock lasts until the end of its lease. Use one object in one loop.
    """

    def __init__(
        self,
        clients: Sequence[Redis],
        *,
        prefix: str = "throttle",
        lease: float = 10.0,
        node_timeout: float = 0.2,
        drift: float = 0.01,
    ) -> None:
        check_servers(clients, awaits=True)
        milliseconds("node_timeout", node_timeout)
        self.calls = LockCalls(prefix, lease)
        self.quorum = AsyncQuorum(clients, node_timeout)
        self._drift = checked_drift(drift)

    async def acquire(
        self,
        identity: str | bytes,
        lease: float | None = None,
        *,
        blocking: bool = False,
        timeout: float | None = None,
        renew: bool = False,
        on_lost: Callable[[AsyncHeldRedlock], object] | None = None,
    ) -> AsyncHeldRedlock | None:
        """As `Redlock.acquire`; a task renews, and ``on_lost`` is called in the event loop."""
        deadline = time.monotonic() + patience(blocking, timeout)
        while True:
            held, trouble = await self._attempt(identity, lease, on_lost)
            left = deadline - time.monotonic()
            if held is not None or left <= 0:
                break
            await asyncio.sleep(min(left, random.uniform(*RETRY)))  # noqa: S311 - no secret
        if trouble is not None:
            raise trouble
        if held is not None and renew:
            held.keep()
        return held

    @asynccontextmanager
    async def hold(
        self,
        identity: str | bytes,
        lease: float | None = None,
        *,
        timeout: float | None = None,
        renew: bool = False,
        on_lost: Callable[[AsyncHeldRedlock], object] | None = None,
    ) -> AsyncIterator[AsyncHeldRedlock]:
        """As `Redlock.hold`."""
        held = await self.acquire(identity, lease, blocking=True, timeout=timeout, renew=renew, on_lost=on_lost)
        if held is None:
            raise NotAcquired(f"{shown(identity)} was held by another owner for {timeout} seconds")
        async with held:
            yield held

    def drift(self, lease: float) -> float:
        """Return how many seconds earlier than on the servers a lease ends for the holder."""
        return ends_sooner(lease, self._drift)

    async def _attempt(
        self, identity: str | bytes, lease: float | None, on_lost: Callable[[AsyncHeldRedlock], object] | None
    ) -> tuple[AsyncHeldRedlock | None, StoreUnavailable | None]:
        # A new owner each time, so that votes left from a failed attempt do not count for the next one.
        attempt = self.calls.acquire(identity, lease, None)
        started, trouble = time.monotonic(), None
        try:
            taken = await self.quorum.take(attempt.call)
        except StoreUnavailable as error:
            taken, trouble = False, error
        except asyncio.CancelledError:
            self._give_back(attempt)
            raise
        deadline = started + attempt.lease - self.drift(attempt.lease)
        if taken and time.monotonic() < deadline:
            return AsyncHeldRedlock(self, attempt, deadline=deadline, on_lost=on_lost), None
        self._give_back(attempt)
        return None, trouble

    def _give_back(self, attempt: Attempt) -> None:
        release = self.calls.release(Grant(attempt.key, attempt.owner, None))
        self.quorum.give_back_later(release, attempt.lease)
