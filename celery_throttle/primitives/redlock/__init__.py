"""Locks by identity on the majority of several independent servers."""

from __future__ import annotations

from celery_throttle.primitives.redlock.aio import AsyncHeldRedlock, AsyncRedlock
from celery_throttle.primitives.redlock.sync import HeldRedlock, Redlock

__all__ = ["AsyncHeldRedlock", "AsyncRedlock", "HeldRedlock", "Redlock"]
