"""Leases for asyncio, renewed by a task."""

from __future__ import annotations

import asyncio
import time
import weakref
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from celery_throttle.primitives.checks import shown
from celery_throttle.primitives.lease.base import Lease, logger
from celery_throttle.store.scripts import execute_async

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from types import TracebackType

    from redis.asyncio import Redis
    from typing_extensions import Self

    from celery_throttle.store.scripts import Call

__all__ = ["AsyncHeld", "AsyncRenewableLease", "in_background"]

#: Strong references, because the loop only has weak ones to its tasks.
_background: set[asyncio.Task[Any]] = set()


class AsyncRenewableLease(Lease, ABC):
    """As `RenewableLease`, for ``async with``; ``renew`` and ``release`` are awaited."""

    async def __aenter__(self) -> Self:
        self._enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._released is not None:
            return
        try:
            released = await self.release()
        except Exception:
            if error is None:
                raise
            logger.warning("celery_throttle: cannot release %s", shown(self.identity), exc_info=True)
            return
        if error is None and not released:
            raise self._lose()

    @abstractmethod
    async def renew(self, lease: float | None = None) -> bool:
        """Set the rest of the lease to ``lease`` seconds."""

    @abstractmethod
    async def release(self) -> bool:
        """Release the lock or permit."""

    def keep(self) -> None:
        """Renew at each third of the lease, until it is released or lost, or has no references left."""
        in_background(_keep(weakref.ref(self), self._next_renewal()))

    async def renew_quietly(self) -> float | None:
        """Renew for the task; return the pause before the next renewal, None if there is none."""
        try:
            await self.renew()
        except Exception as error:  # noqa: BLE001 - a lease that is not renewed must be reported after any error
            return self._pause_after(error)
        return self._next_renewal()


class AsyncHeld(AsyncRenewableLease):
    """As `Held`, on an asyncio client."""

    def __init__(
        self,
        client: Redis,
        identity: str | bytes,
        owner: str,
        *,
        seconds: float,
        deadline: float,
        on_lost: Callable[[Any], object] | None,
        renewal: Callable[[float], Call],
        giving_back: Callable[[], Call],
    ) -> None:
        super().__init__(identity, owner, seconds=seconds, deadline=deadline, on_lost=on_lost)
        self._client, self._renewal, self._giving_back = client, renewal, giving_back

    async def renew(self, lease: float | None = None) -> bool:
        """As `HeldLock.renew`."""
        self._check_held()
        seconds = self._seconds if lease is None else lease
        call = self._renewal(seconds)
        started = time.monotonic()
        if not await execute_async(self._client, call):
            self._check_held()  # a release during the call is no loss
            raise self._lose()
        self._seconds, self._deadline = seconds, started + seconds
        return True

    async def release(self) -> bool:
        """As `HeldLock.release`."""

        async def give_back() -> None:
            released = bool(await execute_async(self._client, self._giving_back()))
            if not released:
                self._lose()
            self._released = released

        self._releasing = True
        if self._released is None:
            await asyncio.shield(in_background(give_back()))  # the release goes on after a cancellation
        return bool(self._released)


def in_background(work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a task that no caller has to wait for in the running loop."""
    task = asyncio.get_running_loop().create_task(work)
    _background.add(task)
    task.add_done_callback(_background.discard)
    return task


async def _keep(held: weakref.ref[AsyncRenewableLease], pause: float | None) -> None:
    while pause is not None:
        await asyncio.sleep(pause)
        pause = await _renew(held)


async def _renew(held: weakref.ref[AsyncRenewableLease]) -> float | None:
    lease = held()
    return await lease.renew_quietly() if lease is not None else None
