"""Permits outside of tasks: in a web handler, a script, a part of a task's body; threads and asyncio."""

from __future__ import annotations

from celery_throttle.permits.limit import AsyncAcquire, Limit
from celery_throttle.permits.permit import Permit

__all__ = ["AsyncAcquire", "Limit", "Permit"]
