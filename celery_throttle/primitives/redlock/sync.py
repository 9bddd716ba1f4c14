"""Locks by identity on the majority of several independent Redis servers."""

from __future__ import annotations

import random
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from celery_throttle.core.wrong_calls import constructor_with_fixes
from celery_throttle.errors import NotAcquired, StoreUnavailable
from celery_throttle.primitives.checks import milliseconds, patience, shown
from celery_throttle.primitives.elsewhere import REDLOCK
from celery_throttle.primitives.lease.sync import RenewableLease
from celery_throttle.primitives.lock.calls import Grant, LockCalls
from celery_throttle.primitives.redlock.sync_nodes import Node, ask, deliver
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
    from collections.abc import Callable, Iterator, Sequence

    from redis import Redis

    from celery_throttle.primitives.lock.calls import Attempt
    from celery_throttle.store.scripts import Call

__all__ = ["HeldRedlock", "Redlock"]


class Quorum:
    """The servers of a lock; each call goes to all of them at the same time.

    Args:
        clients: one for each server.
        node_timeout: seconds to wait for replies.
    """

    def __init__(self, clients: Sequence[Redis], node_timeout: float) -> None:
        self._nodes = [Node(client) for client in clients]
        self._timeout = node_timeout
        self._votes = Votes(len(clients), node_timeout)

    def take(self, call: Call) -> bool:
        """Run lock/acquire.lua; return whether a majority granted the lock.

        Raises:
            StoreUnavailable: less than a majority of the servers replied.
        """
        question = ask(self._nodes, call, self._timeout)
        taken = False
        try:
            taken = self._votes.taken(question.wait(self._timeout, self._votes.decided(granted)))
        finally:
            if not taken:
                question.withdraw()
        return taken

    def keep(self, call: Call) -> bool:
        """Run lock/acquire.lua for a held lock; return whether a majority still had the lock.

        A server that came back empty takes the lock again, but its vote does not count until the next renewal.

        Raises:
            StoreUnavailable: too few servers replied for a result.
        """
        question = ask(self._nodes, call, self._timeout)
        replies = question.wait(self._timeout, self._votes.decided(still_held))
        return self._votes.verdict(replies, still_held)

    def give_back(self, call: Call, lease: float) -> bool:
        """Run lock/release.lua; return whether a majority still had the lock.

        A server that is out of reach gets the call when it is back, unless the lease is over by then.

        Raises:
            StoreUnavailable: too few servers replied for a result.
        """
        replies = deliver(self._nodes, call, lease).wait(self._timeout, self._votes.decided(ended))
        return self._votes.verdict(replies, ended)

    def give_back_later(self, call: Call, lease: float) -> None:
        """As `give_back`, without waiting for replies."""
        deliver(self._nodes, call, lease)


class HeldRedlock(RenewableLease):
    """A lock held on the majority; in a ``with`` statement it is released at the end of the block.

    Leaving the block raises `LeaseLost` if the lock was lost inside the block, unless the block raises an error itself.

    Attributes:
        identity: the locked identity, as given.
        owner: the name of the holder.
        lost: whether another owner may have the lock.
        lease_left: seconds that certainly are left of the lease, less the drift.
    """

    def __init__(
        self,
        lock: Redlock,
        attempt: Attempt,
        *,
        deadline: float,
        on_lost: Callable[[HeldRedlock], object] | None,
    ) -> None:
        super().__init__(attempt.identity, attempt.owner, seconds=attempt.lease, deadline=deadline, on_lost=on_lost)
        self._lock, self._key = lock, attempt.key

    def renew(self, lease: float | None = None) -> bool:
        """Set the rest of the lease to ``lease`` seconds or more, on the majority; return True.

        Raises:
            LeaseLost: too few servers still had the lock.
            StoreUnavailable: too few servers replied; the lease goes on as before, or was renewed.
        """
        self._check_held()
        seconds = self._seconds if lease is None else lease
        call = self._lock.calls.acquire(self.identity, seconds, self.owner).call
        started = time.monotonic()
        try:
            kept = self._lock.quorum.keep(call)
        finally:
            # Another thread has released the lock. On a server that got the release first, this call took it again.
            if self._releasing:
                self._lock.quorum.give_back_later(self._giving_back(), seconds)
        if not kept:
            self._check_held()  # a release during the call is no loss
            raise self._lose()
        self._seconds = seconds
        self._deadline = max(self._deadline, started + seconds - self._lock.drift(seconds))
        return True

    def release(self) -> bool:
        """Release the lock on all servers; False if too few of them still had it. A second call returns the same.

        Raises:
            StoreUnavailable: too few servers replied for a result; the others get the release when they are back.
        """
        self._releasing = True
        self._stop.put(None)
        if self._released is None:
            released = self._lock.quorum.give_back(self._giving_back(), self._seconds)
            if not released:
                self._lose()
            self._released = released
        return self._released

    def _giving_back(self) -> Call:
        return self._lock.calls.release(Grant(self._key, self.owner, None))


@constructor_with_fixes(**REDLOCK)
class Redlock:
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

    def __init__(
        self,
        clients: Sequence[Redis],
        *,
        prefix: str = "throttle",
        lease: float = 10.0,
        node_timeout: float = 0.2,
        drift: float = 0.01,
    ) -> None:
        check_servers(clients)
        milliseconds("node_timeout", node_timeout)
        self.calls = LockCalls(prefix, lease)
        self.quorum = Quorum(clients, node_timeout)
        self._drift = checked_drift(drift)

    def acquire(
        self,
        identity: str | bytes,
        lease: float | None = None,
        *,
        blocking: bool = False,
        timeout: float | None = None,
        renew: bool = False,
        on_lost: Callable[[HeldRedlock], object] | None = None,
    ) -> HeldRedlock | None:
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
        deadline = time.monotonic() + patience(blocking, timeout)
        while True:
            held, trouble = self._attempt(identity, lease, on_lost)
            left = deadline - time.monotonic()
            if held is not None or left <= 0:
                break
            time.sleep(min(left, random.uniform(*RETRY)))  # noqa: S311 - no secret
        if trouble is not None:
            raise trouble
        if held is not None and renew:
            held.keep()
        return held

    @contextmanager
    def hold(
        self,
        identity: str | bytes,
        lease: float | None = None,
        *,
        timeout: float | None = None,
        renew: bool = False,
        on_lost: Callable[[HeldRedlock], object] | None = None,
    ) -> Iterator[HeldRedlock]:
        """Hold the lock for a ``with`` block; waits ``timeout`` for it, by default for ever. Arguments as `acquire`.

        Raises:
            NotAcquired: the lock was held by others all that time.
            LeaseLost: at the end of the block: the lock was lost inside it, and the block raised nothing itself.
            StoreUnavailable: too few servers replied.
        """
        held = self.acquire(identity, lease, blocking=True, timeout=timeout, renew=renew, on_lost=on_lost)
        if held is None:
            raise NotAcquired(f"{shown(identity)} was held by another owner for {timeout} seconds")
        with held:
            yield held

    def drift(self, lease: float) -> float:
        """Return how many seconds earlier than on the servers a lease ends for the holder."""
        return ends_sooner(lease, self._drift)

    def _attempt(
        self, identity: str | bytes, lease: float | None, on_lost: Callable[[HeldRedlock], object] | None
    ) -> tuple[HeldRedlock | None, StoreUnavailable | None]:
        # A new owner each time, so that votes left from a failed attempt do not count for the next one.
        attempt = self.calls.acquire(identity, lease, None)
        started, trouble = time.monotonic(), None
        try:
            taken = self.quorum.take(attempt.call)
        except StoreUnavailable as error:
            taken, trouble = False, error
        deadline = started + attempt.lease - self.drift(attempt.lease)
        if taken and time.monotonic() < deadline:
            return HeldRedlock(self, attempt, deadline=deadline, on_lost=on_lost), None
        self._give_back(attempt)
        return None, trouble

    def _give_back(self, attempt: Attempt) -> None:
        release = self.calls.release(Grant(attempt.key, attempt.owner, None))
        self.quorum.give_back_later(release, attempt.lease)
