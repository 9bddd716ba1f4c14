"""One permit of a fair semaphore."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from celery_throttle.primitives.async_held import AsyncHeld
from celery_throttle.primitives.held import Held

if TYPE_CHECKING:
    from collections.abc import Callable

    from redis import Redis
    from redis.asyncio import Redis as AsyncRedis

    from celery_throttle.primitives.semaphore_calls import Granted, SemaphoreCalls, Turn

__all__ = ["AsyncHeldPermit", "HeldPermit"]


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


class AsyncHeldPermit(AsyncHeld):
    """As `HeldPermit`; ``renew`` and ``release`` are awaited, and it belongs in an ``async with`` statement."""

    def __init__(
        self,
        client: AsyncRedis,
        calls: SemaphoreCalls,
        turn: Turn,
        granted: Granted,
        on_lost: Callable[[AsyncHeldPermit], object] | None,
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
