"""Locks by identity on one Redis: one holder, a lease, a fencing token."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import RedisError

from celery_throttle.core.wrong_calls import with_fixes
from celery_throttle.primitives.checks import checked_client, patience, shown
from celery_throttle.primitives.driving import Client, ask, blocking, blocking_block
from celery_throttle.primitives.lease import (
    AsyncRenewableLease,
    Lease,
    OnOneServer,
    RenewableLease,
    afterwards,
    held_block,
    next_look,
    undo,
)
from celery_throttle.primitives.lock_calls import LockCalls, LockInfo, answer, info
from celery_throttle.primitives.mailbox import Mailbox

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from celery_throttle.primitives.lock_calls import Attempt

__all__ = ["AsyncHeldLock", "AsyncIdentityLock", "HeldLock", "IdentityLock", "LockInfo"]


class _Held(OnOneServer):
    """One grant of a lock, on a client of either kind."""

    @property
    def fencing_token(self) -> int:
        """The token of the grant."""
        return int(self._grant.fencing_token)


class HeldLock(_Held, RenewableLease):
    """One grant of an identity lock; in a ``with`` statement it is released at the end of the block.

    Leaving the block raises `LeaseLost` if the lock was lost inside the block, unless the block raises an error itself.

    Attributes:
        identity: the locked identity, as given.
        owner: the name of the holder.
        fencing_token: grows with every grant under this prefix; for the resource to check.
        lost: whether another owner may have the lock: the store reported it, or the lease was not renewed in time.
        lease_left: seconds that certainly are left of the lease.
    """


class AsyncHeldLock(_Held, AsyncRenewableLease):
    """As `HeldLock`, for ``async with``; ``renew`` and ``release`` are awaited."""


class _Locks(Generic[Client]):
    """What both kinds of locks have."""

    _awaits: ClassVar[bool]
    _held: ClassVar[type[HeldLock | AsyncHeldLock]]

    @with_fixes()
    def __init__(self, client: Client, *, prefix: str = "throttle", lease: float = 60.0) -> None:
        self._client: Any = checked_client(client, awaits=self._awaits)
        self._calls = LockCalls(prefix, lease)

    async def _attempt(self, attempt: Attempt, on_lost: Callable[[Any], object] | None) -> Any:
        """Return the held lock, or the present grant of another owner."""
        started = time.monotonic()
        granted, holder = answer(await ask(self._client, attempt.call))
        if not granted:
            return holder
        return self._held(
            self._client,
            self._calls,
            replace(attempt.grant, fencing_token=holder.fencing_token),
            identity=attempt.identity,
            owner=attempt.grant.owner,
            seconds=attempt.lease,
            deadline=started + attempt.lease,
            on_lost=on_lost,
        )

    async def _wait(self, attempt: Attempt, deadline: float, on_lost: Callable[[Any], object] | None) -> Any:
        hints = Mailbox(self._client, attempt.grant.key, None, awaits=self._awaits)
        try:
            while True:
                # The first wait ends with the subscription. The attempt after it finds an earlier release.
                found = await self._attempt(attempt, on_lost)
                left = deadline - time.monotonic()
                if isinstance(found, Lease):
                    return found
                if left <= 0:
                    return None
                await hints.wait(min(left, next_look(found.lease_left)))
        finally:
            await hints.close()


class AsyncIdentityLock(_Locks[AsyncRedis]):
    """As `IdentityLock`, with the same arguments, on an asyncio client; both may be used on one prefix.

    ::

        from redis.asyncio import Redis

        from celery_throttle.primitives import AsyncIdentityLock

        async def pay(client: Redis) -> int:
            locks = AsyncIdentityLock(client)
            async with locks.hold("order 17", timeout=5, renew=True) as held:
                return held.fencing_token

    Warning:
        As `IdentityLock`. Also, renewal is a task of the event loop: code that blocks the loop for longer than two
        thirds of the lease loses the lock. A cancelled acquire may have got the lock; a background task then releases
        the lock. If the loop ends before that, the lock lasts until the end of its lease.
    """

    _awaits, _held = True, AsyncHeldLock

    async def acquire(
        self,
        identity: str | bytes,
        lease: float | None = None,
        *,
        owner: str | None = None,
        blocking: bool = False,
        timeout: float | None = None,
        renew: bool = False,
        on_lost: Callable[[Any], object] | None = None,
    ) -> AsyncHeldLock | None:
        """As `IdentityLock.acquire`; a task renews, and ``on_lost`` is called in the event loop."""
        wait = patience(blocking, timeout)
        attempt = self._calls.acquire(identity, lease, owner)
        try:
            held = await self._attempt(attempt, on_lost)
            if not isinstance(held, Lease):
                held = await self._wait(attempt, time.monotonic() + wait, on_lost) if wait else None
        except RedisError:
            raise  # without a release, since the server does not answer
        except BaseException as error:
            # An owner that was given may have had the lock before, so only a lock with a new owner is released.
            if owner is None:
                work = undo(self._client, self._calls, attempt.grant, f"release {shown(identity)}")
                await afterwards(work, error, awaits=self._awaits)
            raise
        if held is not None and renew:
            held.keep()
        return held  # type: ignore[no-any-return]

    @asynccontextmanager
    async def hold(
        self,
        identity: str | bytes,
        lease: float | None = None,
        *,
        owner: str | None = None,
        timeout: float | None = None,
        renew: bool = False,
        on_lost: Callable[[Any], object] | None = None,
    ) -> AsyncIterator[AsyncHeldLock]:
        """As `IdentityLock.hold`."""
        options: Any = {"owner": owner, "timeout": timeout, "renew": renew, "on_lost": on_lost}
        acquired = self.acquire(identity, lease, blocking=True, **options)
        async with held_block(acquired, f"{shown(identity)} was held by another owner for {timeout} seconds") as held:
            yield held

    async def locked_by(self, identity: str | bytes) -> LockInfo | None:
        """As `IdentityLock.locked_by`."""
        return info(await ask(self._client, self._calls.look(identity)))

    async def forget(self, identity: str | bytes, fencing_token: int) -> bool:
        """As `IdentityLock.forget`."""
        return bool(await ask(self._client, self._calls.forget(identity, fencing_token)))


class IdentityLock(_Locks[Redis]):
    """Locks by identity: one holder for each, with a lease that ends by itself and a fencing token.

    An order number, an account, the arguments of a job: any str or bytes, of any length (text counts as its UTF-8
    bytes). One object serves any number of identities, threads and processes. All times are seconds.

    The fencing token makes a write safe even when its author was paused for longer than the lease: the resource itself
    refuses writes of earlier holders. ::

        import sqlite3

        from redis import Redis

        from celery_throttle.primitives import IdentityLock

        orders = sqlite3.connect(":memory:")
        orders.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, state TEXT, fence INTEGER NOT NULL)")
        orders.execute("INSERT INTO orders VALUES ('17', 'new', 0)")

        locks = IdentityLock(Redis())
        with locks.hold("order 17", timeout=5) as held:
            paid = orders.execute(
                "UPDATE orders SET state = 'paid', fence = :fence WHERE id = '17' AND fence < :fence",
                {"fence": held.fencing_token},
            )
            assert paid.rowcount == 1  # 0: a later holder wrote before us, so our data is old

    Keys: ``{prefix}:3:lock:<sha256 of the identity>`` while held, ``{prefix}:3:lock:fence`` for good, and for a minute
    after a release ``{prefix}:3:lock:released:<token>``. With the last one, a release that redis-py sends twice counts
    once. For the same reason an acquire with the same ``owner`` gets the same grant.

    Source: single-instance lock of the Redis documentation (``SET NX PX``, compared release); the token as in
    Kleppmann, "How to do distributed locking" (2016). The token is a hybrid clock, max(last + 1, time in us), so that
    it also grows after Redis lost its data. Complexity: O(1) and one round trip for every method. A waiting acquire
    sends one more call for each release and each end of a lease, and holds a second connection. About 250 bytes while
    held, 150 for the minute after.

    Args:
        client: a redis-py client; with short socket timeouts, renewal notices a dead server sooner.
        prefix: the beginning of all keys; objects with the same prefix share locks and tokens.
        lease: how long a lock lasts unless it is renewed, by default.

    Raises:
        ConfigurationError: an argument cannot work; all methods raise it, too.

    Warning:
        The lease is a promise about time. A holder that is paused (swap, a stopped VM) for longer than its lease goes
        on beside the next holder. The same happens when a failover loses the lock or Redis evicts it (``volatile-*``
        policies do). Only a resource that checks the fencing token is safe. The token fails in one case: the data was
        lost *and* the server's clock was set back behind the last grant. Waiting is not fair: every release wakes all
        waiting calls for that identity, and the fastest gets the lock. ``on_lost`` is called when the renewing call
        returns, which with redis-py's defaults is up to a minute late on a frozen server; ``lost`` is exact.
    """

    _awaits, _held = False, HeldLock

    @blocking(AsyncIdentityLock.acquire)
    def acquire(self) -> HeldLock | None:
        """Take the lock; None if another owner has it.

        Args:
            identity: the text or bytes to lock.
            lease: how long the lock lasts unless it is renewed.
            owner: a name for this grant, by default a new one. With the name of the present holder, the call returns
                the same grant, and a shorter lease is lengthened to ``lease``.
            blocking: wait until the lock is free.
            timeout: how long to wait at most; None is for ever, 0 is one attempt.
            renew: a thread renews the lease until the lock is released or this program has no reference to it any more.
            on_lost: called once when the lease is found to be lost, in the thread that finds it.

        Raises:
            redis.exceptions.RedisError: Redis did not answer; the lock may have been taken, for one lease.
        """

    @blocking_block(AsyncIdentityLock.hold)
    def hold(self) -> HeldLock:
        """Hold the lock for a ``with`` block; waits ``timeout`` for it, by default for ever. Arguments as `acquire`.

        Raises:
            NotAcquired: the lock was held by others all that time.
            LeaseLost: at the end of the block: the lock was lost inside it, and the block raised nothing itself.
            redis.exceptions.RedisError: Redis did not answer.
        """

    @blocking(AsyncIdentityLock.locked_by)
    def locked_by(self) -> LockInfo | None:
        """Return the owner of the lock, the time of the grant and the rest of the lease; None if the lock is free."""

    @blocking(AsyncIdentityLock.forget)
    def forget(self) -> bool:
        """End the grant that `locked_by` showed; False if it is over already.

        The holder gets `LeaseLost` at its next renewal, or False from its release. Until then, the fencing token of the
        next holder can stop its writes.
        """
