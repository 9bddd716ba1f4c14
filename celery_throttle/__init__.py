"""Throttle Celery tasks over all workers through one Redis."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from celery_throttle.tasks.ours import register

if TYPE_CHECKING:
    from celery_throttle.control.throttle_control import ThrottleControl
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
    from celery_throttle.tasks.rate_limited import RateLimited
    from celery_throttle.tasks.throttled import Throttled

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
    "ThrottleControl",
    "ThrottleError",
    "Throttled",
]

__version__ = "0.1.0"

#: Where each name is; loaded when it is first asked for (PEP 562), since Celery and redis-py take their time.
_PLACES = {
    "Limit": "permits",
    "Permit": "permits",
    "RateLimited": "tasks.rate_limited",
    "ThrottleControl": "control.throttle_control",
    "Throttled": "tasks.throttled",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_PLACES.get(name, 'errors')}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


register()
