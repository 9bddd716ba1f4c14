"""A counting semaphore on one Redis: so many permits over all programs, first come first served."""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from redis.exceptions import RedisError

from celery_throttle.core.wrong_calls import constructor_tells
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

    Leaving the block raises `LeaseLost` if the permit was lost meanwhile, unless the block raises something itself.

    Attributes:
        name: of the semaphore.
        holder: who has it.
        ticket: its place in the order of all who asked; grows from one to the next.
        lost: whether somebody else may have the permit: the store said so, or the lease was not renewed in time.
        lease_left: seconds that are left for certain.
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


@constructor_tells(**SEMAPHORE)
class FairSemaphore:
    """So many permits over all programs; who asks first is served first, and a dead program loses what it had.

    ::

        from redis import Redis

        from celery_throttle.primitives import FairSemaphore

        encoders = FairSemaphore(Redis(), "encoders", 3)
        with encoders.hold("web-1", timeout=30, renew=True) as permit:
            print(permit.ticket, encoders.holders(), encoders.waiting())
        encoders.set_limit(5)       # for all programs, at once
        encoders.set_limit(None)    # back to what each one says: 3

    Whoever finds no permit free gets a ticket from the store, and with it a place in line. Whoever gives a permit back
    hands it to the lowest ticket in the same call: from then on it belongs to that one, nobody can come between, and
    one hint, to nobody else, says so. While somebody waits nobody else gets a permit, however quick. One who waits also
    looks on its own every two seconds, in case a hint was lost; after six seconds without a look it has left the line,
    so a killed program blocks nobody for longer. A later `acquire` starts at the end.

    A permit is a lease, by the store's clock. It ends by itself unless it is renewed (``renew=True``: a thread does so
    while the permit is held); then the next in line has it. Each permit has a nonce of its own, so two permits of one
    holder are two, and nobody can renew or give back that of somebody else, nor one that it has lost.

    **Which limit counts:** the number set with `set_limit` if there is one, for all programs and until it is set again
    or reset with ``None``; else each call goes by the number its own object was made with. Programs that differ (during
    a deploy) each grant up to their own number. More permits are handed out at once; with fewer, those who hold one
    keep it, and nobody gets one until enough have come back.

    Keys: ``{prefix}:2:semaphore:<part>:<name>`` while somebody holds or waits (five parts, gone with the last of them,
    or twice the longest lease after a crash), with the part ``limit`` while a limit is set, and
    ``{prefix}:2:semaphore:released:<nonce>`` for a minute after a release, so that a release which redis-py sends twice
    is one.

    Source: the counting semaphore of Carlson, "Redis in Action", 6.3. His fair one adds a counter for the order, but
    that only decides who may stay: whoever is refused is taken out and polls, so nobody waits in line, the quickest
    gets the next permit, and each attempt costs O(N log N) (ZINTERSTORE) under a lock. Kept here is the counter, as a
    ticket (never less than the time in us, so that no counter has to stay in Redis). Complexity: O(log N) and one round
    trip for each method, N those who hold or wait; `holders` is O(holders). An acquire that waits takes one call, or
    two the first time, one more every two seconds, and none at the hand-over. About 300 bytes for each that holds, 450
    for each that waits, 100 for the minute after a release.

    Args:
        client: a redis-py client. An acquire that waits needs a second connection, and a semaphore keeps up to eight of
            these for the next: make one `FairSemaphore` for each name and use it for all threads.
        name: what is limited; 1 to 200 printable characters. Semaphores of one name and prefix share their permits.
        limit: how many permits there are, unless `set_limit` says otherwise; 1 to 1 000 000.
        lease: how many seconds a permit lasts unless it is renewed, by default.
        prefix: what all keys begin with.

    Raises:
        ConfigurationError: an argument cannot work; so do all methods.

    Warning:
        The cap is a promise about time: a holder that is paused (swap, a stopped VM) for longer than its lease goes on
        beside the next one, and so do all when a failover loses permits or Redis evicts them (``volatile-*`` policies
        do). There is no fencing token; where two at once would be wrong and not just expensive, use `IdentityLock` and
        let the resource check its token. Who waits when the data is lost is at the end of a new line.

        Strictly first come first served has its price: a permit that is handed to a program which is stopped, or whose
        machine went off without a word, idles for one lease. (One that was killed is not connected any more, which the
        store sees: then it is the rest of those six seconds.) An acquire that fails because Redis did not answer may
        leave a place in line for six seconds, or a permit for one lease.
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
        """Take a permit when it is one's turn; None if it was not within ``timeout``.

        Args:
            holder: a name for whoever holds it, for `holders`; by default ``host:pid``.
            timeout: how many seconds to wait at most; None is for ever, 0 is one attempt.
            lease: how long the permit lasts unless it is renewed.
            blocking: wait at all; False is one attempt, which takes a free permit only if nobody waits for it.
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
            NotAcquired: its turn did not come in that time.
            LeaseLost: at the end of the block: the permit was lost meanwhile, and the block raised nothing itself.
            redis.exceptions.RedisError: Redis did not answer.
        """
        held = self.acquire(holder, timeout, lease, renew=renew, on_lost=on_lost)
        if held is None:
            raise not_acquired(self._calls.name, timeout)
        with held:
            yield held

    def limit(self) -> int:
        """Return how many permits there are: the number that was set, else that of this object."""
        return self._look().limit

    def set_limit(self, limit: int | None) -> None:
        """Set how many permits there are, for all programs, for good; None: again as many as each program says.

        With more, those who are first in line have them when this returns. With fewer, nobody loses one. 0 lets nobody
        in.
        """
        call = self._calls.set_limit(limit)
        while execute(self._client, call):
            pass

    def holders(self) -> tuple[PermitInfo, ...]:
        """Return who holds a permit, the one whose lease ends first before the others; 10 000 at most."""
        return state(execute(self._client, self._calls.look_at_all())).holders

    def waiting(self) -> int:
        """Return how many wait for a permit."""
        return self._look().waiting

    def _look(self) -> SemaphoreState:
        return state(execute(self._client, self._calls.look()))

    def _ask(self, turn: Turn, stay: float = 0, channel: str = "") -> tuple[Granted | Waits | None, float]:
        asked_at = time.monotonic()
        raw = execute(self._client, self._calls.acquire(turn, stay, channel))
        return answer(raw, turn, asked_at), asked_at

    def _wait(self, turn: Turn, deadline: float) -> Granted | None:
        # Whoever fails here closes the mailbox: a permit that is handed to it then does not idle for its whole lease.
        with self._mailboxes.one() as mailbox:
            try:
                return self._wait_at(mailbox, turn, deadline)
            except RedisError:
                raise  # to ask a server once more that does not answer would only take time
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
