"""A counting semaphore on one Redis: permits for all programs, first come first served."""

from __future__ import annotations

import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, ClassVar, Generic

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import RedisError

from celery_throttle.core.wrong_calls import with_fixes
from celery_throttle.primitives.checks import checked_client, patience, shown
from celery_throttle.primitives.driving import Client, ask, blocking, blocking_block
from celery_throttle.primitives.lease import (
    AsyncRenewableLease,
    OnOneServer,
    RenewableLease,
    afterwards,
    held_block,
    next_look,
    undo,
)
from celery_throttle.primitives.mailbox import Mailboxes
from celery_throttle.primitives.semaphore_calls import (
    LISTED,
    STAY,
    Granted,
    PermitInfo,
    SemaphoreCalls,
    answer,
    hinted,
    state,
)

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from celery_throttle.primitives.semaphore_calls import Turn, Waits

__all__ = ["AsyncFairSemaphore", "AsyncHeldPermit", "FairSemaphore", "HeldPermit", "PermitInfo"]


class _Held(OnOneServer):
    """One permit, on a client of either kind."""

    def __init__(self, client: Any, calls: SemaphoreCalls, turn: Turn, granted: Granted, on_lost: Any) -> None:
        self.name, self.holder, self.ticket = calls.name, turn.holder, granted.ticket
        times = {"seconds": turn.lease, "deadline": granted.deadline}
        super().__init__(client, calls, turn, identity=calls.name, owner=turn.holder, on_lost=on_lost, **times)


class HeldPermit(_Held, RenewableLease):
    """One permit of a fair semaphore; in a ``with`` statement it is released at the end of the block.

    Leaving the block raises `LeaseLost` if the permit was lost inside the block, unless the block raises an error
    itself.

    Attributes:
        name: the name of the semaphore.
        holder: the name of the holder.
        ticket: the position in the order of all acquire calls; a later call has a higher one.
        lost: whether another caller may have the permit: the store reported it, or the lease was not renewed in time.
        lease_left: seconds that certainly are left of the lease.
    """


class AsyncHeldPermit(_Held, AsyncRenewableLease):
    """As `HeldPermit`, for ``async with``; ``renew`` and ``release`` are awaited."""


class _Semaphore(Generic[Client]):
    """What both kinds of semaphores have."""

    _awaits: ClassVar[bool]
    _held: ClassVar[type[HeldPermit | AsyncHeldPermit]]

    @with_fixes()
    def __init__(self, client: Client, name: str, limit: int, lease: float = 60.0, *, prefix: str = "throttle") -> None:
        self._client: Any = checked_client(client, awaits=self._awaits)
        self._calls = SemaphoreCalls(prefix, name, limit, lease)
        self._mailboxes = Mailboxes(client, self._calls.channel, awaits=self._awaits)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {shown(self._calls.name)}>"

    async def _look(self, listed: int = 0) -> tuple[int, int, tuple[PermitInfo, ...]]:
        return state(await ask(self._client, self._calls.look(listed)))

    async def _ask(self, turn: Turn, stay: float = 0, channel: str = "") -> tuple[Granted | Waits | None, float]:
        asked_at = time.monotonic()
        raw = await ask(self._client, self._calls.acquire(turn, stay, channel))
        return answer(raw, turn, asked_at), asked_at

    async def _wait(self, turn: Turn, deadline: float) -> Granted | None:
        # A failure closes the mailbox, so that a permit that is handed over then does not idle for its whole lease.
        async with self._mailboxes.one() as mailbox:
            while True:
                stay = STAY if time.monotonic() < deadline else 0
                found, asked_at = await self._ask(turn, stay, mailbox.channel)
                if found is None or isinstance(found, Granted):
                    return found
                hint = await mailbox.wait(min(max(deadline - time.monotonic(), 0), next_look(found.lease_left)))
                if granted := hinted(hint, turn, found, asked_at):
                    return granted


class AsyncFairSemaphore(_Semaphore[AsyncRedis]):
    """As `FairSemaphore`, with the same arguments, on an asyncio client; both share the line of one name.

    ::

        from redis.asyncio import Redis

        from celery_throttle.primitives import AsyncFairSemaphore

        async def encode(client: Redis) -> int:
            encoders = AsyncFairSemaphore(client, "encoders", 3)
            async with encoders.hold("web-1", timeout=30, renew=True) as permit:
                return permit.ticket

    Warning:
        As `FairSemaphore`. Also, renewal is a task of the event loop: code that blocks the loop for longer than two
        thirds of the lease loses the permit. For a cancelled acquire, a background task leaves the line, or releases a
        permit that was just granted. If the loop ends before that, the permit lasts until the end of its lease. Closing
        the client also closes the connections that are kept from earlier waits.
    """

    _awaits, _held = True, AsyncHeldPermit

    async def acquire(
        self,
        holder: str | None = None,
        timeout: float | None = None,
        lease: float | None = None,
        *,
        blocking: bool = True,
        renew: bool = False,
        on_lost: Callable[[Any], object] | None = None,
    ) -> AsyncHeldPermit | None:
        """As `FairSemaphore.acquire`; a task renews, and ``on_lost`` is called in the event loop."""
        wait = patience(blocking, timeout)
        turn = self._calls.turn(holder, lease)
        try:
            granted = await self._wait(turn, time.monotonic() + wait) if wait else (await self._ask(turn))[0]
        except RedisError:
            raise  # without a withdrawal, since the server does not answer
        except BaseException as error:
            # It may wait in line, or have a permit that was just granted.
            work = undo(self._client, self._calls, turn, f"leave the line of {shown(self._calls.name)}")
            await afterwards(work, error, awaits=self._awaits)
            raise
        if not isinstance(granted, Granted):
            return None
        held: Any = self._held(self._client, self._calls, turn, granted, on_lost)
        if renew:
            held.keep()
        return held  # type: ignore[no-any-return]

    @asynccontextmanager
    async def hold(
        self,
        holder: str | None = None,
        timeout: float | None = None,
        lease: float | None = None,
        *,
        renew: bool = False,
        on_lost: Callable[[Any], object] | None = None,
    ) -> AsyncIterator[AsyncHeldPermit]:
        """As `FairSemaphore.hold`."""
        acquired = self.acquire(holder, timeout, lease, renew=renew, on_lost=on_lost)
        refusal = f"No permit of {shown(self._calls.name)} was free for {timeout} seconds"
        async with held_block(acquired, refusal) as held:
            yield held

    async def limit(self) -> int:
        """As `FairSemaphore.limit`."""
        limit, _, _ = await self._look()
        return limit

    async def set_limit(self, limit: int | None) -> None:
        """As `FairSemaphore.set_limit`."""
        call = self._calls.set_limit(limit)
        while await ask(self._client, call):
            pass

    async def holders(self) -> tuple[PermitInfo, ...]:
        """As `FairSemaphore.holders`."""
        _, _, holders = await self._look(LISTED)
        return holders

    async def waiting(self) -> int:
        """As `FairSemaphore.waiting`."""
        _, waiting, _ = await self._look()
        return waiting


class FairSemaphore(_Semaphore[Redis]):
    """A number of permits for all programs, first come first served; the permits of a dead program are freed.

    ::

        from redis import Redis

        from celery_throttle.primitives import FairSemaphore

        encoders = FairSemaphore(Redis(), "encoders", 3)
        with encoders.hold("web-1", timeout=30, renew=True) as permit:
            print(permit.ticket, encoders.holders(), encoders.waiting())
        encoders.set_limit(5)       # for all programs, at once
        encoders.set_limit(None)    # back to the number of each object: 3

    A call that finds no free permit gets a ticket from the store, and with the ticket a place in line. A release hands
    its permit to the lowest ticket in the same call. No other call can come between, and one hint informs the new
    holder. While a call waits, no later call gets a permit. A waiting call also asks every two seconds, in case a hint
    was lost. A call that has not asked for six seconds leaves the line, so a killed program blocks others for at most
    that long. A later `acquire` starts at the end of the line.

    A permit is a lease, by the store's clock. The lease ends unless it is renewed (``renew=True``: a thread renews the
    lease while the permit is held). Then the next call in line gets the permit. Each permit has a nonce of its own.
    So two permits of one holder are two, and a caller cannot renew or release the permit of another caller, or a lost
    one.

    **The limit that counts:** a number set with `set_limit` counts for all programs, until it is set again or reset
    with ``None``. Without it, each call uses the number of its own object. Programs that differ (during a deploy) each
    grant up to their own number. A higher limit hands out permits at once. A lower limit takes no permit away, and
    grants none until enough are released.

    Keys: ``{prefix}:3:semaphore:<part>:<name>`` while there are holders or waiting calls (five parts, gone with the
    last of them, or twice the longest lease after a crash), with the part ``limit`` while a limit is set, and
    ``{prefix}:3:semaphore:released:<nonce>`` for a minute after a release. With the last one, a release that redis-py
    sends twice counts once.

    Source: the counting semaphore of Carlson, "Redis in Action", 6.3. The fair one there adds a counter for the order.
    But a refused call is taken out and polls, so there is no line: the fastest call gets the next permit, and each
    attempt costs O(N log N) (ZINTERSTORE) under a lock. The counter is used here as the ticket (never less than the
    time in us, so that no counter has to stay in Redis). Complexity: O(log N) and one round trip for each method, where
    N is the number of holders and waiting calls; `holders` is O(holders). An acquire that waits takes one call, or two
    the first time, one more every two seconds, and none at the hand-over. About 300 bytes for each holder, 450 for each
    waiting call, 100 for the minute after a release.

    Args:
        client: a redis-py client. An acquire that waits needs a second connection, and a semaphore keeps up to eight of
            these for later: make one `FairSemaphore` for each name and use it for all threads.
        name: the name of the semaphore; 1 to 200 printable characters. Semaphores of one name and prefix share their
            permits.
        limit: number of permits, unless one is set with `set_limit`; 1 to 1 000 000.
        lease: how many seconds a permit lasts unless it is renewed, by default.
        prefix: the beginning of all keys.

    Raises:
        ConfigurationError: an argument cannot work; all methods raise it, too.

    Warning:
        The cap is a promise about time. A holder that is paused (swap, a stopped VM) for longer than its lease goes on
        beside the next one. The same happens to all holders when a failover loses permits or Redis evicts them
        (``volatile-*`` policies do). There is no fencing token; where two at once would be wrong and not just
        expensive, use `IdentityLock` and let the resource check its token. A call that waits when the data is lost gets
        a place at the end of a new line.

        Strictly first come first served has its price. A permit that is handed to a stopped program, or to a machine
        that lost its power, idles for one lease. The store sees that a killed program is disconnected; then the permit
        idles for the rest of those six seconds. An acquire that fails because Redis did not answer may leave a place in
        line for six seconds, or a permit for one lease.
    """

    _awaits, _held = False, HeldPermit

    @blocking(AsyncFairSemaphore.acquire)
    def acquire(self) -> HeldPermit | None:
        """Take a permit in the order of the line; None if that was not possible within ``timeout``.

        Args:
            holder: a name for the holder, for `holders`; by default ``host:pid``.
            timeout: how many seconds to wait at most; None is for ever, 0 is one attempt.
            lease: how long the permit lasts unless it is renewed.
            blocking: wait for a permit; False is one attempt, which takes a free permit only if there is no line.
            renew: a thread renews the lease until the permit is released or this program has no reference to it any
                more.
            on_lost: called once when the lease is found to be lost, in the thread that finds it.

        Raises:
            redis.exceptions.RedisError: Redis did not answer; a place in line or a permit may stay for its lease.
        """

    @blocking_block(AsyncFairSemaphore.hold)
    def hold(self) -> HeldPermit:
        """Hold a permit for a ``with`` block; waits ``timeout`` for it, by default for ever. Arguments as `acquire`.

        Raises:
            NotAcquired: the call got no permit in that time.
            LeaseLost: at the end of the block: the permit was lost inside it, and the block raised nothing itself.
            redis.exceptions.RedisError: Redis did not answer.
        """

    @blocking(AsyncFairSemaphore.limit)
    def limit(self) -> int:
        """Return the number of permits: the one that was set, else that of this object."""

    @blocking(AsyncFairSemaphore.set_limit)
    def set_limit(self) -> None:
        """Set the number of permits for all programs, without an end; None resets it to the number of each object.

        When the call returns, the first calls in line have the additional permits. A lower number takes no permit away.
        With 0, no call gets a permit.
        """

    @blocking(AsyncFairSemaphore.holders)
    def holders(self) -> tuple[PermitInfo, ...]:
        """Return the holders of permits, ordered by the ends of their leases; 10 000 at most."""

    @blocking(AsyncFairSemaphore.waiting)
    def waiting(self) -> int:
        """Return the number of calls that wait for a permit."""
