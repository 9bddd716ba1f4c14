"""The arguments of a call by name, and the values in them that a task's limits need."""

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
    """Return the arguments of a call by name, with defaults; None if the arguments do not fit the task."""
    try:
        return _binder(task.run).bind(args, kwargs)
    except TypeError:
        return None


def left_out(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the defaults of a task's parameters that a call gives nothing for, by name."""
    return _binder(task.run).left_out(args, kwargs)


def values_of(task: Any, policy: Policy, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the values in a call's arguments that its limits need, see `Policy.values`.

    Raises:
        ConfigurationError: an argument is missing, or has a wrong value.
    """
    args, kwargs = tuple(args or ()), dict(kwargs or {})
    # A call whose arguments do not fit fails when it runs; until then its arguments are used as given.
    bound = by_name(task, args, kwargs)
    try:
        return policy.values(task.name, kwargs if bound is None else bound, args, kwargs, left_out(task, args, kwargs))
    except ConfigurationError as error:
        if bound is not None:
            raise
        raise WrongArguments(f"{error} ({why_not(task.run, args, kwargs)})") from None


_binder = lru_cache(maxsize=512)(Binder)
