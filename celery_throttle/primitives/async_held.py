"""What is held on one server, for asyncio."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from celery_throttle.primitives.async_lease import AsyncRenewableLease
from celery_throttle.store.scripts import execute_async

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis.asyncio import Redis

    from celery_throttle.store.scripts import Call

__all__ = ["AsyncHeld"]


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
            self._check_held()  # a release that came between is no loss
            raise self._lose()
        self._seconds, self._deadline = seconds, started + seconds
        return True

    async def release(self) -> bool:
        """As `HeldLock.release`."""
        self._releasing = True
        if self._released is None:
            released = bool(await execute_async(self._client, self._giving_back()))
            if not released:
                self._lose()
            self._released = released
        return self._released
