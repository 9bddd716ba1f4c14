"""A lock and a semaphore of one permit, by the same words: what holds for leases is tested once."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from redis import Redis

from celery_throttle.primitives import FairSemaphore, IdentityLock
from tests.primitives.pace import end_permits
from tests.primitives.sides import SyncSide

__all__ = ["KINDS", "LeasedLock", "LeasedPermit", "Shown"]

SEMAPHORE = "{throttle}:3:semaphore"


@dataclass(frozen=True)
class Shown:
    """The holder, as everyone can read it."""

    owner: str
    number: int
    lease_left: float
    since: datetime


class LeasedLock:
    """The lock of one identity; ``view`` is a client for looking and for mishaps."""

    refusal = "'a' was held by another owner"

    def __init__(self, side: SyncSide, client: Any, view: Redis) -> None:
        self.thing, self.view = side.make("IdentityLock", client), view
        self.key = IdentityLock(view)._calls.key("a")

    def acquire(self, owner: str | None = None, lease: float | None = None, **options: Any) -> Any:
        """Take it without waiting, unless the options want that."""
        return self.thing.acquire("a", lease, owner=owner, **options)

    def take(self, owner: str | None = None, lease: float | None = None, **options: Any) -> Any:
        """Take it; it must be free."""
        held = self.acquire(owner, lease, **options)
        assert held is not None
        return held

    def hold(self, lease: float | None = None, **options: Any) -> Any:
        return self.thing.hold("a", lease, **options)

    def in_loop(self) -> LeasedLock:
        """Return the same for code in the loop, which awaits what it returns."""
        same = copy.copy(self)
        same.thing = self.thing.thing
        return same

    def number(self, held: Any) -> int:
        """Return what grows with each grant."""
        return int(held.fencing_token)

    def shown(self) -> Shown | None:
        info = IdentityLock(self.view).locked_by("a")
        return Shown(info.owner, info.fencing_token, info.lease_left, info.since) if info else None

    def there(self) -> Shown:
        """Return the holder, who must be there."""
        found = self.shown()
        assert found is not None
        return found

    def nearly_end(self) -> None:
        """Let the lease in the store be shorter than any that a test asks for."""
        self.view.pexpire(self.key, 20_000)

    def renewed(self) -> bool:
        return self.view.pttl(self.key) > 20_000

    def lose(self) -> None:
        """Let the store forget the holder."""
        self.view.delete(self.key)

    def waiting(self) -> int:
        """Return how many calls wait, and listen for a hint."""
        return dict(self.view.pubsub_numsub(self.key)).get(self.key.encode(), 0)


class LeasedPermit(LeasedLock):
    """The only permit of a semaphore."""

    refusal = "No permit of 'a' was free"

    def __init__(self, side: SyncSide, client: Any, view: Redis) -> None:
        self.thing, self.view = side.make("FairSemaphore", client, "a", 1), view

    def acquire(self, owner: str | None = None, lease: float | None = None, **options: Any) -> Any:
        return self.thing.acquire(owner, lease=lease, **{"blocking": False, **options})

    def hold(self, lease: float | None = None, **options: Any) -> Any:
        return self.thing.hold(lease=lease, **options)

    def number(self, held: Any) -> int:
        return int(held.ticket)

    def shown(self) -> Shown | None:
        holders = FairSemaphore(self.view, "a", 1).holders()
        return Shown(holders[0].holder, holders[0].ticket, holders[0].lease_left, holders[0].since) if holders else None

    def nearly_end(self) -> None:
        end_permits(self.view, "a")

    def renewed(self) -> bool:
        return self.shown() is not None

    def lose(self) -> None:
        self.view.delete(*(f"{SEMAPHORE}:{part}:a" for part in ("leases", "holders")))

    def waiting(self) -> int:
        hints = self.view.pubsub_channels(f"{SEMAPHORE}:*")
        return min(len(hints), FairSemaphore(self.view, "a", 1).waiting())


KINDS = {"lock": LeasedLock, "permit": LeasedPermit}
