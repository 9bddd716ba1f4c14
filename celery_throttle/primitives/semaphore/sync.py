"""A counting semaphore on one Redis: permits for all programs, first come first served."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from celery_throttle.core.wrong_calls import constructor_with_fixes
from celery_throttle.primitives.checks import checked_client, patience, shown
from celery_throttle.primitives.elsewhere import SEMAPHORE
from celery_throttle.primitives.lease.base import logger, next_look
from celery_throttle.primitives.lease.sync import Held
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
from celery_throttle.primitives.semaphore.sync_mailbox import Mailboxes
from celery_throttle.store.scripts import execute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from redis import Redis

    from celery_throttle.primitives.semaphore.calls import PermitInfo, Turn, Waits
    from celery_throttle.primitives.semaphore.sync_mailbox import Mailbox

__all__ = ["FairSemaphore", "HeldPermit"]


class HeldPermit(Held):
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

    def __init__(
        self,
        client: Redis,
        calls: SemaphoreCalls,
        turn: Turn,
        granted: Granted,
        on_lost: Callable[[HeldPermit], object] | None,
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
class FairSemaphore:
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

    Keys: ``{prefix}:2:semaphore:<part>:<name>`` while there are holders or waiting calls (five parts, gone with the
    last of them, or twice the longest lease after a crash), with the part ``limit`` while a limit is set, and
    ``{prefix}:2:semaphore:released:<nonce>`` for a minute after a release. With the last one, a release that redis-py
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

    def __init__(self, client: Redis, name: str, limit: int, lease: float = 60.0, *, prefix: str = "throttle") -> None:
        self._client = checked_client(client)
        self._calls = SemaphoreCalls(prefix, name, limit, lease)
        self._mailboxes = Mailboxes(client, self._calls.channel)

    def __repr__(self) -> str:
        return f"<FairSemaphore {shown(self._calls.name)}>"

    def acquire(
        self,
        holder: str | None = None,
        timeout: float | None = None,
        lease: float | None = None,
        *,
        blocking: bool = True,
        renew: bool = False,
        on_lost: Callable[[HeldPermit], object] | None = None,
    ) -> HeldPermit | None:
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
        wait = patience(blocking, timeout)
        turn = self._calls.turn(holder, lease)
        granted = self._wait(turn, time.monotonic() + wait) if wait else self._ask(turn)[0]
        if not isinstance(granted, Granted):
            return None
        held = HeldPermit(self._client, self._calls, turn, granted, on_lost)
        if renew:
            held.keep()
        return held

    @contextmanager
    def hold(
        self,
        holder: str | None = None,
        timeout: float | None = None,
        lease: float | None = None,
        *,
        renew: bool = False,
        on_lost: Callable[[HeldPermit], object] | None = None,
    ) -> Iterator[HeldPermit]:
        """Hold a permit for a ``with`` block; waits ``timeout`` for it, by default for ever. Arguments as `acquire`.

        Raises:
            NotAcquired: the call got no permit in that time.
            LeaseLost: at the end of the block: the permit was lost inside it, and the block raised nothing itself.
            redis.exceptions.RedisError: Redis did not answer.
        """
        held = self.acquire(holder, timeout, lease, renew=renew, on_lost=on_lost)
        if held is None:
            raise not_acquired(self._calls.name, timeout)
        with held:
            yield held

    def limit(self) -> int:
        """Return the number of permits: the one that was set, else that of this object."""
        return self._look().limit

    def set_limit(self, limit: int | None) -> None:
        """Set the number of permits for all programs, without an end; None resets it to the number of each object.

        When the call returns, the first calls in line have the additional permits. A lower number takes no permit away.
        With 0, no call gets a permit.
        """
        call = self._calls.set_limit(limit)
        while execute(self._client, call):
            pass

    def holders(self) -> tuple[PermitInfo, ...]:
        """Return the holders of permits, ordered by the ends of their leases; 10 000 at most."""
        return state(execute(self._client, self._calls.look_at_all())).holders

    def waiting(self) -> int:
        """Return the number of calls that wait for a permit."""
        return self._look().waiting

    def _look(self) -> SemaphoreState:
        return state(execute(self._client, self._calls.look()))

    def _ask(self, turn: Turn, stay: float = 0, channel: str = "") -> tuple[Granted | Waits | None, float]:
        asked_at = time.monotonic()
        raw = execute(self._client, self._calls.acquire(turn, stay, channel))
        return answer(raw, turn, asked_at), asked_at

    def _wait(self, turn: Turn, deadline: float) -> Granted | None:
        # A failure closes the mailbox, so that a permit that is handed over then does not idle for its whole lease.
        with self._mailboxes.one() as mailbox:
            try:
                return self._wait_at(mailbox, turn, deadline)
            except RedisError:
                raise  # without a withdrawal, since the server does not answer
            except BaseException:
                self._withdraw(turn)
                raise

    def _wait_at(self, mailbox: Mailbox, turn: Turn, deadline: float) -> Granted | None:
        while True:
            stay = STAY if time.monotonic() < deadline else 0
            found, asked_at = self._ask(turn, stay, mailbox.channel)
            if found is None or isinstance(found, Granted):
                return found
            hint = mailbox.wait(min(max(deadline - time.monotonic(), 0), next_look(found.lease_left)))
            if granted := hinted(hint, turn, found, asked_at):
                return granted

    def _withdraw(self, turn: Turn) -> None:
        try:
            execute(self._client, self._calls.release(turn))
        except RedisError as error:
            logger.warning("celery_throttle: cannot leave the line of %s: %s", shown(self._calls.name), error)
