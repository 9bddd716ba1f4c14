"""The building blocks, each usable on its own with nothing but redis-py.

Each docstring has the source of the algorithm, its complexity, and its weak points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_throttle.core.lazy import lazy

if TYPE_CHECKING:
    from celery_throttle.core.rates import Rate
    from celery_throttle.primitives.counter import AsyncCounter, Counter
    from celery_throttle.primitives.lock import AsyncHeldLock, AsyncIdentityLock, HeldLock, IdentityLock, LockInfo
    from celery_throttle.primitives.rate import AsyncRateLimiter, AsyncReservation, Decision, RateLimiter, Reservation
    from celery_throttle.primitives.redlock import AsyncHeldRedlock, AsyncRedlock, HeldRedlock, Redlock
    from celery_throttle.primitives.semaphore import (
        AsyncFairSemaphore,
        AsyncHeldPermit,
        FairSemaphore,
        HeldPermit,
        PermitInfo,
    )

__all__ = [
    "AsyncCounter",
    "AsyncFairSemaphore",
    "AsyncHeldLock",
    "AsyncHeldPermit",
    "AsyncHeldRedlock",
    "AsyncIdentityLock",
    "AsyncRateLimiter",
    "AsyncRedlock",
    "AsyncReservation",
    "Counter",
    "Decision",
    "FairSemaphore",
    "HeldLock",
    "HeldPermit",
    "HeldRedlock",
    "IdentityLock",
    "LockInfo",
    "PermitInfo",
    "Rate",
    "RateLimiter",
    "Redlock",
    "Reservation",
]

#: Loaded on first access, so that a program loads only the primitives that it uses.
__getattr__, __dir__ = lazy(
    __name__,
    {
        name: module
        for module, names in {
            "counter": "AsyncCounter Counter",
            "lock": "AsyncHeldLock AsyncIdentityLock HeldLock IdentityLock LockInfo",
            "rate": "AsyncRateLimiter AsyncReservation Decision Rate RateLimiter Reservation",
            "redlock": "AsyncHeldRedlock AsyncRedlock HeldRedlock Redlock",
            "semaphore": "AsyncFairSemaphore AsyncHeldPermit FairSemaphore HeldPermit PermitInfo",
        }.items()
        for name in names.split()
    },
)
