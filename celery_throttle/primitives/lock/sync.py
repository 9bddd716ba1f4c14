"""A lock by identity on one Redis, with a lease and a fencing token."""

from __future__ import annotations

import time
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING

from celery_throttle.core.wrong_calls import constructor_with_fixes
from celery_throttle.errors import NotAcquired
from celery_throttle.primitives.checks import checked_client, patience, shown
from celery_throttle.primitives.elsewhere import LOCK
from celery_throttle.primitives.lease.base import next_look
from celery_throttle.primitives.lease.sync import Held
from celery_throttle.primitives.lock.calls import Grant, LockCalls, answer, info
from celery_throttle.store.scripts import execute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis import Redis

    from celery_throttle.primitives.lock.calls import Answer, Attempt, LockInfo

__all__ = ["HeldLock", "IdentityLock"]


class HeldLock(Held):
    """One grant of an identity lock; in a ``with`` statement it is released at the end of the block.

    Leaving the block raises `LeaseLost` if the lock was lost inside the block, unless the block raises an error itself.

    Attributes:
        identity: the locked identity, as given.
        owner: the name of the holder.
        fencing_token: grows with every grant under this prefix; for the resource to check.
        lost: whether another owner may have the lock: the store reported it, or the lease was not renewed in time.
        lease_left: seconds that certainly are left of the lease.
    """

    def __init__(
        self,
        client: Redis,
        calls: LockCalls,
        attempt: Attempt,
        *,
        fencing_token: int,
        deadline: float,
        on_lost: Callable[[HeldLock], object] | None,
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
class IdentityLock:
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

    Keys: ``{prefix}:2:lock:<sha256 of the identity>`` while held, ``{prefix}:2:lock:fence`` for good, and for a minute
    after a release ``{prefix}:2:lock:released:<token>``. With the last one, a release that redis-py sends twice counts
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

    def __init__(self, client: Redis, *, prefix: str = "throttle", lease: float = 60.0) -> None:
        self._client = checked_client(client)
        self._calls = LockCalls(prefix, lease)

    def acquire(
        self,
        identity: str | bytes,
        lease: float | None = None,
        *,
        owner: str | None = None,
        blocking: bool = False,
        timeout: float | None = None,
        renew: bool = False,
        on_lost: Callable[[HeldLock], object] | None = None,
    ) -> HeldLock | None:
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
        wait = patience(blocking, timeout)
        attempt = self._calls.acquire(identity, lease, owner)
        got = self._attempt(attempt, on_lost)
        held = got if isinstance(got, HeldLock) else None
        if held is None and wait:
            held = self._wait(attempt, time.monotonic() + wait, on_lost)
        if held is not None and renew:
            held.keep()
        return held

    @contextmanager
    def hold(
        self,
        identity: str | bytes,
        lease: float | None = None,
        *,
        owner: str | None = None,
        timeout: float | None = None,
        renew: bool = False,
        on_lost: Callable[[HeldLock], object] | None = None,
    ) -> Iterator[HeldLock]:
        """Hold the lock for a ``with`` block; waits ``timeout`` for it, by default for ever. Arguments as `acquire`.

        Raises:
            NotAcquired: the lock was held by others all that time.
            LeaseLost: at the end of the block: the lock was lost inside it, and the block raised nothing itself.
            redis.exceptions.RedisError: Redis did not answer.
        """
        held = self.acquire(identity, lease, owner=owner, blocking=True, timeout=timeout, renew=renew, on_lost=on_lost)
        if held is None:
            raise NotAcquired(f"{shown(identity)} was held by another owner for {timeout} seconds")
        with held:
            yield held

    def locked_by(self, identity: str | bytes) -> LockInfo | None:
        """Return the owner of the lock, the time of the grant and the rest of the lease; None if the lock is free."""
        return info(execute(self._client, self._calls.look(identity)))

    def forget(self, identity: str | bytes, fencing_token: int) -> bool:
        """End the grant that `locked_by` showed; False if it is over already.

        The holder gets `LeaseLost` at its next renewal, or False from its release. Until then, the fencing token of the
        next holder can stop its writes.
        """
        return bool(execute(self._client, self._calls.forget(identity, fencing_token)))

    def _attempt(self, attempt: Attempt, on_lost: Callable[[HeldLock], object] | None) -> HeldLock | Answer:
        started = time.monotonic()
        got = answer(execute(self._client, attempt.call))
        if not got.granted:
            return got
        return HeldLock(
            self._client,
            self._calls,
            attempt,
            fencing_token=got.holder.fencing_token,
            deadline=started + attempt.lease,
            on_lost=on_lost,
        )

    def _wait(self, attempt: Attempt, deadline: float, on_lost: Callable[[HeldLock], object] | None) -> HeldLock | None:
        with closing(self._client.pubsub(ignore_subscribe_messages=True)) as hints:  # type: ignore[no-untyped-call]
            hints.subscribe(attempt.key)
            while True:
                # The first message confirms the subscription. The attempt after it finds an earlier release.
                held = self._attempt(attempt, on_lost)
                left = deadline - time.monotonic()
                if isinstance(held, HeldLock):
                    return held
                if left <= 0:
                    return None
                hints.get_message(timeout=min(left, next_look(held.holder.lease_left)))
