"""Locks by identity on the majority of several independent Redis servers."""

from __future__ import annotations

import asyncio
import random
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from celery_throttle.core.checks import seconds
from celery_throttle.core.wrong_calls import with_fixes
from celery_throttle.errors import ConfigurationError, StoreUnavailable
from celery_throttle.primitives.checks import LEAST, patience, shown
from celery_throttle.primitives.driving import Client, blocking, blocking_block, settled
from celery_throttle.primitives.lease import AsyncRenewableLease, Lease, RenewableLease, held_block
from celery_throttle.primitives.lock_calls import LockCalls
from celery_throttle.primitives.redlock_quorum import Quorum

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from celery_throttle.primitives.lock_calls import Attempt

__all__ = ["AsyncHeldRedlock", "AsyncRedlock", "HeldRedlock", "Redlock"]

#: Seconds between two attempts; random, so that callers that split the votes do not split them again.
_RETRY = (0.02, 0.2)
_MAX_DRIFT = 0.5
#: Twice the precision of expiry on the servers (one millisecond), as in the algorithm.
_PRECISION = 0.002


class _Held(Lease):
    """A lock held on the majority, on clients of either kind."""

    def __init__(
        self, lock: _Redlock[Any], attempt: Attempt, *, deadline: float, on_lost: Callable[[Any], object] | None
    ) -> None:
        owner = attempt.grant.owner
        super().__init__(attempt.identity, owner, seconds=attempt.lease, deadline=deadline, on_lost=on_lost)
        self._lock, self._giving_back = lock, lock.calls.release(attempt.grant)

    async def _extend(self, seconds: float) -> object:
        call = self._lock.calls.acquire(self.identity, seconds, self.owner).call
        try:
            return await self._lock.quorum.keep(call)
        finally:
            # It was released during the call. On a server that got the release first, this call took it again.
            if self._releasing:
                self._lock.quorum.give_back_later(self._giving_back, seconds)

    async def _give_back(self) -> object:
        return await self._lock.quorum.give_back(self._giving_back, self._seconds)

    def _end_of(self, started: float, seconds: float) -> float:
        return max(self._deadline, self._lock.end_of(started, seconds))


class HeldRedlock(_Held, RenewableLease):
    """A lock held on the majority; in a ``with`` statement it is released at the end of the block.

    Leaving the block raises `LeaseLost` if the lock was lost inside the block, unless the block raises an error itself.

    Attributes:
        identity: the locked identity, as given.
        owner: the name of the holder.
        lost: whether another owner may have the lock.
        lease_left: seconds that certainly are left of the lease, less the drift.
    """


class AsyncHeldRedlock(_Held, AsyncRenewableLease):
    """As `HeldRedlock`, for ``async with``; ``renew`` and ``release`` are awaited."""


class _Redlock(Generic[Client]):
    """What both kinds of Redlocks have."""

    _awaits: ClassVar[bool]
    _held: ClassVar[type[HeldRedlock | AsyncHeldRedlock]]

    @with_fixes()
    def __init__(
        self,
        clients: Sequence[Client],
        *,
        prefix: str = "throttle",
        lease: float = 10.0,
        node_timeout: float = 0.2,
        drift: float = 0.01,
    ) -> None:
        timeout = seconds("node_timeout", node_timeout, LEAST)
        self.quorum = Quorum(clients, timeout, awaits=self._awaits)
        self.calls = LockCalls(prefix, lease)
        given: object = drift
        if isinstance(given, bool) or not isinstance(given, int | float) or not 0 <= given <= _MAX_DRIFT:
            raise ConfigurationError(
                f"drift must be a part of the lease, 0 to {_MAX_DRIFT}, got {drift!r}: write drift=0.01"
            )
        self._drift = drift

    def end_of(self, started: float, lease: float) -> float:
        """Return the end of a lease for its holder, which is a little earlier than on the servers."""
        return started + lease - lease * self._drift - _PRECISION

    async def _attempt(
        self, identity: str | bytes, lease: float | None, on_lost: Callable[[Any], object] | None
    ) -> tuple[Any, StoreUnavailable | None]:
        # A new owner each time, so that votes left from a failed attempt do not count for the next one.
        attempt = self.calls.acquire(identity, lease, None)
        started, trouble = time.monotonic(), None
        try:
            taken = await self.quorum.take(attempt.call)
        except StoreUnavailable as error:
            taken, trouble = False, error
        except (asyncio.CancelledError, KeyboardInterrupt):
            self._give_back(attempt)
            raise
        deadline = self.end_of(started, attempt.lease)
        if taken and time.monotonic() < deadline:
            return self._held(self, attempt, deadline=deadline, on_lost=on_lost), None
        self._give_back(attempt)
        return None, trouble

    def _give_back(self, attempt: Attempt) -> None:
        self.quorum.give_back_later(self.calls.release(attempt.grant), attempt.lease)


class AsyncRedlock(_Redlock[AsyncRedis]):
    """As `Redlock`, with the same arguments, on asyncio clients; both may be used on the same servers.

    ::

        from redis.asyncio import Redis

        from celery_throttle.primitives import AsyncRedlock

        async def report(clients: list[Redis]) -> bool:
            locks = AsyncRedlock(clients)
            async with locks.hold("nightly report", timeout=5, renew=True) as held:
                return not held.lost

    Warning:
        As `Redlock`: **no fencing token**, so the lock saves work, but proves nothing to the resource. Also, a task of
        the event loop sends a release again that a server could not take, and releases after a cancelled acquire. If
        the loop ends before that, the lock lasts until the end of its lease. Use one object in one loop.
    """

    _awaits, _held = True, AsyncHeldRedlock

    async def acquire(
        self,
        identity: str | bytes,
        lease: float | None = None,
        *,
        blocking: bool = False,
        timeout: float | None = None,
        renew: bool = False,
        on_lost: Callable[[Any], object] | None = None,
    ) -> AsyncHeldRedlock | None:
        """As `Redlock.acquire`; a task renews, and ``on_lost`` is called in the event loop."""
        deadline = time.monotonic() + patience(blocking, timeout)
        sleep: Any = asyncio.sleep if self._awaits else time.sleep
        while True:
            held, trouble = await self._attempt(identity, lease, on_lost)
            left = deadline - time.monotonic()
            if held is not None or left <= 0:
                break
            await settled(sleep(min(left, random.uniform(*_RETRY))))  # noqa: S311 - no secret
        if trouble is not None:
            raise trouble
        if held is not None and renew:
            held.keep()
        return held  # type: ignore[no-any-return]

    @asynccontextmanager
    async def hold(
        self,
        identity: str | bytes,
        lease: float | None = None,
        *,
        timeout: float | None = None,
        renew: bool = False,
        on_lost: Callable[[Any], object] | None = None,
    ) -> AsyncIterator[AsyncHeldRedlock]:
        """As `Redlock.hold`."""
        options: Any = {"timeout": timeout, "renew": renew, "on_lost": on_lost}
        acquired = self.acquire(identity, lease, blocking=True, **options)
        async with held_block(acquired, f"{shown(identity)} was held by another owner for {timeout} seconds") as held:
            yield held


class Redlock(_Redlock[Redis]):
    """Locks by identity on the majority of N independent servers (not replicas of each other), 3, 5 or more.

    The locks work while a minority of the servers is down, frozen or has lost its data. Times are seconds. ::

        from redis import Redis

        from celery_throttle.primitives import Redlock

        locks = Redlock([Redis(port=6379), Redis(port=6380), Redis(port=6381)])
        with locks.hold("nightly report", timeout=5, renew=True) as held:
            assert not held.lost

    Each server has an ordinary identity lock: ``IdentityLock(one_client, prefix=...).locked_by(identity)`` returns its
    present grant. A call goes to all servers at the same time. The answer is there as soon as a majority agrees, and
    after ``node_timeout`` at the latest. A release goes to all servers, also after a failed acquire, and each server
    gets the release after its acquire. A server that is out of reach gets no other call until it has that release, or
    the lease is over.

    Source: "Distributed Locks with Redis" in the Redis documentation; taking the lock again on servers that came back
    empty while it is renewed, as redsync does. Complexity: O(1) and one round trip on each server; one thread for each
    server, ending when idle.

    Args:
        clients: one redis-py client for each server. Give them a short ``socket_timeout`` and no retries: no caller
            waits longer than ``node_timeout``, but a server counts as silent until its call has ended.
        prefix: the beginning of all keys.
        lease: how long a lock lasts unless it is renewed, by default.
        node_timeout: how long to wait for a server; short beside the lease.
        drift: how far the servers' clocks may run apart during a lease, as a part of the lease.

    Raises:
        ConfigurationError: an argument cannot work; all methods raise it, too.

    Warning:
        There is **no fencing token**: each server counts on its own, so there is no order over all of them. So nothing
        protects a resource from a holder that was paused (collector, swap, a stopped VM) for longer than its lease, or
        from clocks that jump. Nor is there protection from a server that forgets a lock which it had voted for, and
        votes again. Without ``appendfsync always``, keep a restarted server away for the longest lease. Use Redlock to
        save work, not for correctness. Where correctness matters, use `IdentityLock` on one server and let the resource
        check its fencing token. Waiting is neither fair nor woken: a waiting acquire tries again at random times.
    """

    _awaits, _held = False, HeldRedlock

    @blocking(AsyncRedlock.acquire)
    def acquire(self) -> HeldRedlock | None:
        """Take the lock; None if others have it on too many servers.

        Args:
            identity: the text or bytes to lock.
            lease: how long the lock lasts unless it is renewed.
            blocking: try again until the lock is free.
            timeout: how long to try at most; None is for ever, 0 is one attempt.
            renew: a thread renews the lease until the lock is released or this program has no reference to it any more.
            on_lost: called once when the lease is found to be lost, in the thread that finds it.

        Raises:
            StoreUnavailable: too few servers replied, at the last attempt.
        """

    @blocking_block(AsyncRedlock.hold)
    def hold(self) -> HeldRedlock:
        """Hold the lock for a ``with`` block; waits ``timeout`` for it, by default for ever. Arguments as `acquire`.

        Raises:
            NotAcquired: the lock was held by others all that time.
            LeaseLost: at the end of the block: the lock was lost inside it, and the block raised nothing itself.
            StoreUnavailable: too few servers replied.
        """
