"""Leases: locks and permits that end unless they are renewed."""

from __future__ import annotations

import asyncio
import logging
import random
import threading
import time
import weakref
from abc import ABC, abstractmethod
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from celery_throttle.core import checks
from celery_throttle.errors import ConfigurationError, LeaseLost, NotAcquired
from celery_throttle.primitives.checks import LEAST, shown
from celery_throttle.primitives.driving import ask, run, settled

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine

    from typing_extensions import Self

__all__ = [
    "RECEIPT_MS",
    "RENEWALS",
    "AsyncRenewableLease",
    "Lease",
    "OnOneServer",
    "RenewableLease",
    "afterwards",
    "held_block",
    "in_background",
    "logger",
    "next_look",
    "store_time",
    "undo",
]

logger = logging.getLogger(__name__)

#: Milliseconds in which a repeated release gets the same answer, because redis-py's own retries take up to a minute.
RECEIPT_MS = 60_000
#: Renewals in the length of one lease.
RENEWALS = 3
#: Seconds after which a waiting acquire asks again, in case a hint was lost.
_LOOK_AGAIN = 2.0
#: Strong references, because the loop only has weak ones to its tasks.
_background: set[asyncio.Task[Any]] = set()
_EPOCH = datetime(1970, 1, 1, tzinfo=timezone.utc)


class Lease(ABC):
    """A lease by the holder's own clock: it ends a little earlier than in the store, never later.

    Args:
        identity: the locked identity, or the name of the semaphore.
        owner: the name of the holder.
        seconds: how long a renewal lasts.
        deadline: the present end of the lease, on the clock of ``time.monotonic``.
        on_lost: called once, with this object, when the lease is found to be lost.
    """

    renew: Callable[..., Any]
    release: Callable[[], Any]

    def __init__(
        self,
        identity: str | bytes,
        owner: str,
        *,
        seconds: float,
        deadline: float,
        on_lost: Callable[[Any], object] | None,
    ) -> None:
        self.identity, self.owner = identity, owner
        self._seconds, self._deadline, self._on_lost = seconds, deadline, on_lost
        self._guard = threading.Lock()
        self._releasing = False
        self._gone = False
        self._entered = False
        #: the result of the release; None before
        self._released: bool | None = None

    def __repr__(self) -> str:
        state = "lost" if self.lost else "released" if self._released else f"{self.lease_left:.1f} s left"
        return f"<{type(self).__name__} {shown(self.identity)} {state}>"

    @property
    def lost(self) -> bool:
        """Whether another holder may have it: the store reported it, or the lease was not renewed in time."""
        return self._gone or (self._released is None and time.monotonic() >= self._deadline)

    @property
    def lease_left(self) -> float:
        """Seconds that certainly are left of the lease."""
        if self._gone or self._released is not None:
            return 0.0
        return max(0.0, self._deadline - time.monotonic())

    @abstractmethod
    async def _extend(self, seconds: float) -> object:
        """Set the rest of the lease in the store; return something false if the lease is not held any more."""

    @abstractmethod
    async def _give_back(self) -> object:
        """End the lease in the store; return something false if it was not held any more."""

    def _end_of(self, started: float, seconds: float) -> float:
        """Return the end of a lease that was renewed by a call at ``started``."""
        return started + seconds

    async def _renew(self, lease: float | None) -> bool:
        self._check_held()
        seconds = self._seconds if lease is None else checks.seconds("lease", lease, LEAST)
        started = time.monotonic()
        if not await self._extend(seconds):
            self._check_held()  # a release during the call is no loss
            raise self._lose()
        self._seconds, self._deadline = seconds, self._end_of(started, seconds)
        return True

    async def _release(self, give_back: Callable[[], Awaitable[object]] | None = None) -> bool:
        self._releasing = True
        if self._released is None:
            released = bool(await (give_back or self._give_back)())
            if not released:
                self._lose()
            self._released = released
        return self._released

    @asynccontextmanager
    async def block(self) -> AsyncIterator[Self]:
        """Hold the lease for a block, for clients of both kinds."""
        self._enter()
        try:
            yield self
        except BaseException as error:
            await self._leave(error, self.release)
            raise
        await self._leave(None, self.release)

    def _enter(self) -> None:
        """Begin the ``with`` block. A second block is refused, because the end of each block releases the lease."""
        if self._releasing:
            raise LeaseLost(f"{shown(self.identity)} was released, and is not held in this block: acquire it again")
        if self.lost:
            raise self._lose()
        if self._entered:
            raise ConfigurationError(
                f"{shown(self.identity)} is in a with block already, and the end of the inner one would release it: "
                f"acquire one more, or take the inner block away"
            )
        self._entered = True

    async def _leave(self, error: BaseException | None, release: Callable[[], Any]) -> None:
        """End the ``with`` block, given the error that the block raised, which no other error replaces."""
        if self._released is not None:
            return
        try:
            released = await settled(release())
        except Exception:
            if error is None:
                raise
            logger.warning("celery_throttle: cannot release %s", shown(self.identity), exc_info=True)
            return
        if error is None and not released:
            raise self._lose()

    async def renew_quietly(self) -> float | None:
        """Renew for a thread or task; return the pause before the next renewal, None if there is none."""
        try:
            await settled(self.renew())
        except Exception as error:  # noqa: BLE001 - a lease that is not renewed must be reported after any error
            return self._pause_after(error)
        return self._next_renewal()

    def _check_held(self) -> None:
        if self._releasing:
            raise LeaseLost(f"{shown(self.identity)} was released and cannot be renewed")
        if self._gone:
            raise self._error()

    def _lose(self) -> LeaseLost:
        """Mark the lease as lost, log and call ``on_lost`` the first time, and return the error to raise."""
        with self._guard:
            first, self._gone = not self._gone, True
        if first:
            logger.warning("lease_lost: %s", self._error(), extra={"action": "lease_lost", "owner": self.owner})
            self._call_on_lost()
        return self._error()

    def _call_on_lost(self) -> None:
        try:
            if self._on_lost is not None:
                self._on_lost(self)
        except Exception:
            # Logged, because in the renewing thread no caller would get the error.
            logger.exception("celery_throttle: on_lost of %s failed", shown(self.identity))

    def _error(self) -> LeaseLost:
        return LeaseLost(f"{shown(self.identity)} is not held by {self.owner} any more")

    def _next_renewal(self) -> float:
        """Return the seconds until the next renewal."""
        return self._seconds / RENEWALS

    def _pause_after(self, error: Exception) -> float | None:
        """Return the seconds to wait after a failed renewal, None if the lease is released or lost."""
        if self._releasing:
            return None
        if isinstance(error, LeaseLost) or self.lease_left <= 0:
            self._lose()
            return None
        logger.warning("celery_throttle: cannot renew %s, trying again: %s", shown(self.identity), error)
        return min(1.0, self._seconds / 10, self.lease_left)


class RenewableLease(Lease):
    """A lease with a release, also at the end of a ``with`` block, and a thread that can renew it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        # A SimpleQueue, because its put() may run inside the garbage collector; other queues and events may not.
        self._stop: SimpleQueue[None] = SimpleQueue()

    def __enter__(self) -> Self:
        self._enter()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        run(self._leave(error, self.release))

    def renew(self, lease: float | None = None) -> bool:
        """Set the rest of the lease to ``lease`` seconds (by default as many as before); return True.

        A lost lease is an error and not a False, as in ``extend`` and ``reacquire`` of redis-py's lock.

        Raises:
            LeaseLost: the lease is not held any more.
            redis.exceptions.RedisError: Redis did not answer; the lease goes on as before, or was renewed.
            StoreUnavailable: of a Redlock: too few servers replied; the lease goes on as before, or was renewed.
        """
        return run(self._renew(lease))

    def release(self) -> bool:
        """Release it; False, without any change, if it was not held any more. A second call returns the same.

        Raises:
            redis.exceptions.RedisError: Redis did not answer; call it again, or leave it to the end of the lease.
            StoreUnavailable: of a Redlock: too few servers replied; the others get the release when they are back.
        """
        self._stop.put(None)
        return run(self._release())

    def keep(self) -> None:
        """Renew in a thread, at each third of the lease, until it is released or lost, or has no references left."""
        stop = self._stop
        held = weakref.ref(self, lambda _: stop.put(None))
        threading.Thread(
            target=_keep, args=(held, stop, self._next_renewal()), name="celery_throttle-renew", daemon=True
        ).start()


class AsyncRenewableLease(Lease):
    """As `RenewableLease`, for ``async with``; ``renew`` and ``release`` are awaited."""

    async def __aenter__(self) -> Self:
        self._enter()
        return self

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        await self._leave(error, self.release)

    async def renew(self, lease: float | None = None) -> bool:
        """As `RenewableLease.renew`."""
        return await self._renew(lease)

    async def release(self) -> bool:
        """As `RenewableLease.release`; it goes on after a cancellation."""
        self._releasing = True
        return self._released if self._released is not None else await asyncio.shield(in_background(self._release()))

    def keep(self) -> None:
        """Renew in a task, as `RenewableLease.keep`."""
        in_background(_keep_in_loop(weakref.ref(self), self._next_renewal()))


class OnOneServer(Lease):
    """A lease on one server; ``calls`` builds the calls that renew and release its grant, for clients of both kinds."""

    def __init__(
        self, client: Any, calls: Any, grant: Any, *, identity: str | bytes, owner: str, **options: Any
    ) -> None:
        super().__init__(identity, owner, **options)
        self._client, self._calls, self._grant = client, calls, grant

    async def _extend(self, seconds: float) -> object:
        return await ask(self._client, self._calls.renew(self._grant, seconds))

    async def _give_back(self) -> object:
        return await ask(self._client, self._calls.release(self._grant))


async def undo(client: Any, calls: Any, grant: Any, what: str) -> None:
    """Release what a call may have got that was cancelled or interrupted; ``what`` is for the log."""
    try:
        await ask(client, calls.release(grant))
    except RedisError as error:
        logger.warning("celery_throttle: cannot %s: %s", what, error)


@asynccontextmanager
async def held_block(acquired: Any, refusal: str) -> AsyncIterator[Any]:
    """Hold a lease for a block, given what ``acquire`` returns; raise `NotAcquired` if that is None."""
    held = await settled(acquired)
    if held is None:
        raise NotAcquired(refusal)
    async with held.block():
        yield held


def _keep(held: weakref.ref[Lease], stop: SimpleQueue[None], pause: float | None) -> None:
    while pause is not None:
        try:
            stop.get(timeout=pause)
        except Empty:
            # In a function of its own, so that no reference is left during the next wait.
            pause = run(_renewed(held))
        else:
            return


async def _keep_in_loop(held: weakref.ref[Lease], pause: float | None) -> None:
    while pause is not None:
        await asyncio.sleep(pause)
        pause = await _renewed(held)


async def _renewed(held: weakref.ref[Lease]) -> float | None:
    lease = held()
    return await lease.renew_quietly() if lease is not None else None


def in_background(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a task that no caller has to wait for in the running loop."""
    task = asyncio.get_running_loop().create_task(work)
    _background.add(task)
    task.add_done_callback(_background.discard)
    return task


async def afterwards(work: Coroutine[Any, Any, Any], error: BaseException, *, awaits: bool) -> None:
    """Clean up after an error: at once, or in a loop in the background, where a coroutine that ends awaits nothing."""
    if not awaits:
        await work
    elif isinstance(error, asyncio.CancelledError):
        in_background(work)
    else:
        work.close()


def next_look(lease_left: float) -> float:
    """Return the seconds to wait for a hint: until the lease ends, and at most `_LOOK_AGAIN`."""
    # A random addition, so that callers do not all ask at once, and never 0, which would be a busy loop.
    spread = random.uniform(0.002, 0.02)  # noqa: S311 - no secret
    return min(lease_left, _LOOK_AGAIN) + spread


def store_time(microseconds: int) -> datetime:
    """Return a time of the store's clock as a datetime."""
    return _EPOCH + timedelta(microseconds=microseconds)
