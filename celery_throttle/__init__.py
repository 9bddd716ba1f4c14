"""Throttle Celery tasks over all workers through one Redis."""

from __future__ import annotations

from celery_throttle import beat, conclude  # noqa: F401  # register their tasks
from celery_throttle.errors import (
    ConfigurationError,
    DuplicateTask,
    LeaseLost,
    LimitExceeded,
    NotAcquired,
    StoreUnavailable,
    ThrottleError,
)
from celery_throttle.limited import RateLimited
from celery_throttle.permits import Limit, Permit
from celery_throttle.task import Throttled

__all__ = [
    "ConfigurationError",
    "DuplicateTask",
    "LeaseLost",
    "Limit",
    "LimitExceeded",
    "NotAcquired",
    "Permit",
    "RateLimited",
    "StoreUnavailable",
    "ThrottleError",
    "Throttled",
]

__version__ = "0.1.0"
