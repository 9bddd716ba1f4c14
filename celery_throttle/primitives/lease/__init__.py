"""Leases: locks and permits that end unless they are renewed."""

from __future__ import annotations

from celery_throttle.primitives.lease.aio import AsyncHeld, AsyncRenewableLease
from celery_throttle.primitives.lease.base import Lease
from celery_throttle.primitives.lease.sync import Held, RenewableLease

__all__ = ["AsyncHeld", "AsyncRenewableLease", "Held", "Lease", "RenewableLease"]
