"""Throttle Celery tasks over all workers through one Redis."""

from __future__ import annotations

from celery_throttle import beat  # noqa: F401  # registers the reaper
from celery_throttle.core.limits import Limit
from celery_throttle.errors import ConfigurationError, StoreUnavailable, ThrottleError
from celery_throttle.task import Throttled

__all__ = ["ConfigurationError", "Limit", "StoreUnavailable", "ThrottleError", "Throttled"]

__version__ = "0.1.0"
