"""Throttle Celery tasks over all workers through one Redis."""

from __future__ import annotations

from typing import TYPE_CHECKING

from celery_throttle.core.lazy import lazy
from celery_throttle.tasks.ours import register

if TYPE_CHECKING:
    from celery_throttle.control.throttle_control import ThrottleControl
    from celery_throttle.errors import (
        ConfigurationError,
        DuplicateTask,
        LeaseLost,
        LimitExceeded,
        NoFencingToken,
        NotAcquired,
        NotAwaited,
        ResultLost,
        StoreInUse,
        StoreUnavailable,
        ThrottleError,
    )
    from celery_throttle.permits import Limit, Permit
    from celery_throttle.tasks.rate_limited import RateLimited
    from celery_throttle.tasks.throttled import Throttled

__all__ = [
    "ConfigurationError",
    "DuplicateTask",
    "LeaseLost",
    "Limit",
    "LimitExceeded",
    "NoFencingToken",
    "NotAcquired",
    "NotAwaited",
    "Permit",
    "RateLimited",
    "ResultLost",
    "StoreInUse",
    "StoreUnavailable",
    "ThrottleControl",
    "ThrottleError",
    "Throttled",
]

__version__: str

#: Loaded on first access, because importing Celery and redis-py takes long.
__getattr__, __dir__ = lazy(
    __name__,
    dict.fromkeys(__all__, "errors")
    | {
        "Limit": "permits",
        "Permit": "permits",
        "RateLimited": "tasks.rate_limited",
        "ThrottleControl": "control.throttle_control",
        "Throttled": "tasks.throttled",
        "__version__": "version",
    },
)

register()
