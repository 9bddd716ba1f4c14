"""Throttle Celery tasks over all workers through one Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_throttle.errors import (
    ConfigurationError,
    DuplicateTask,
    LeaseLost,
    LimitExceeded,
    NotAcquired,
    StoreUnavailable,
    ThrottleError,
)
from celery_throttle.permits import Limit, Permit
from celery_throttle.tasks import conclude, reap  # noqa: F401  # register their tasks
from celery_throttle.tasks.rate_limited import RateLimited
from celery_throttle.tasks.throttled import Throttled

if TYPE_CHECKING:
    from celery_throttle.control.throttle import Throttle

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
    "Throttle",
    "ThrottleError",
    "Throttled",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    # Workers and producers need none of it.
    if name == "Throttle":
        from celery_throttle.control.throttle import Throttle  # noqa: PLC0415

        return Throttle
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
