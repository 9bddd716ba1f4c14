"""A counting semaphore on one Redis, first come first served."""

from __future__ import annotations

from celery_throttle.primitives.semaphore.aio import AsyncFairSemaphore, AsyncHeldPermit
from celery_throttle.primitives.semaphore.calls import PermitInfo
from celery_throttle.primitives.semaphore.sync import FairSemaphore, HeldPermit

__all__ = ["AsyncFairSemaphore", "AsyncHeldPermit", "FairSemaphore", "HeldPermit", "PermitInfo"]
