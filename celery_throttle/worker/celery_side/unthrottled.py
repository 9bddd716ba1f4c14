"""Fail tasks that raise `RateLimited` in a worker without a gate."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from celery_throttle.errors import ThrottleError
from celery_throttle.tasks.rate_limited import RateLimited

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["fail_rate_limited"]

#: Tasks that were wrapped already, by a worker that was started before in this process.
_FAIL: WeakSet[Any] = WeakSet()


def fail_rate_limited(*tasks: Any) -> None:
    """Make `RateLimited` a failure from now on: Celery would ignore it, and there is no gate to handle it.

    To be called before the pool forks its processes, or before Celery makes the tracer of a task.
    """
    for task in tasks:
        if task not in _FAIL:
            _FAIL.add(task)
            task.run = _failing(task.name, task.run)


def _failing(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(run)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        try:
            return run(*args, **kwargs)
        except RateLimited as error:
            text = f"Task {name} raised RateLimited ({error}), but throttle_enabled is False: no worker runs it again"
            raise ThrottleError(text) from error

    return wrapped
