"""Locks by identity on one Redis: one holder, a lease, a fencing token."""

from __future__ import annotations

from celery_throttle.primitives.lock.aio import AsyncHeldLock, AsyncIdentityLock
from celery_throttle.primitives.lock.calls import LockInfo
from celery_throttle.primitives.lock.sync import HeldLock, IdentityLock

__all__ = ["AsyncHeldLock", "AsyncIdentityLock", "HeldLock", "IdentityLock", "LockInfo"]
