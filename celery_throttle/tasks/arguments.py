"""The arguments of a call by name, and what a task's limits need to know of them."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from celery_throttle.core.arguments import Binder
from celery_throttle.core.asking import why_not
from celery_throttle.errors import ConfigurationError, WrongArguments

if TYPE_CHECKING:
    from celery_throttle.core.policy import Policy

__all__ = ["by_name", "left_out", "values_of"]


def by_name(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
    """Return the arguments of a call by name, with the defaults of those left out; None if they do not fit the task."""
    try:
        return _binder(task.run).bind(args, kwargs)
    except TypeError:
        return None


def left_out(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults of a task's parameters that a call gives nothing for, by name."""
    return _binder(task.run).left_out(args, kwargs)


def values_of(task: Any, policy: Policy, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return what of a call's arguments matters to its limits, see `Policy.values`.

    Raises:
        ConfigurationError: an argument is not there, or not what it has to be.
    """
    args, kwargs = tuple(args or ()), dict(kwargs or {})
    # One that does not fit will fail when it runs; until then its arguments are what they are.
    bound = by_name(task, args, kwargs)
    try:
        return policy.values(task.name, kwargs if bound is None else bound, args, kwargs, left_out(task, args, kwargs))
    except ConfigurationError as error:
        if bound is not None:
            raise
        raise WrongArguments(f"{error} ({why_not(task.run, args, kwargs)})") from None


_binder = lru_cache(maxsize=512)(Binder)
