"""Check that the functions and names that users give as options fit the parameters of their task."""

from __future__ import annotations

import inspect
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_throttle.core.checks import closest
from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["check_part", "shown", "takes"]

_SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def check_part(task_name: str, option: str, part: object, task: inspect.Signature | None) -> None:
    """Refuse a part of the arguments that a task has not: a path, or a function that no call of the task fits.

    Args:
        task_name: name of the task, for the message.
        option: the option that has the part as its value.
        part: the value of the option; a value that is neither text nor a function is not checked here.
        task: the parameters of the task, without its ``self``; None if they are unknown.

    Raises:
        ConfigurationError: the part does not fit; the message has the parameters of the task.
    """
    if callable(part):
        _check_function(task_name, option, part, task)
    elif isinstance(part, str) and task is not None:
        parameters = task.parameters
        any_name = any(each.kind == each.VAR_KEYWORD for each in parameters.values())
        if not any_name and part.partition(".")[0] not in parameters:
            raise ConfigurationError(
                f"Task {task_name}: {option} names {part!r}, but the task {_taken(part, parameters)}"
            )


def _check_function(task_name: str, option: str, function: Callable[..., Any], task: inspect.Signature | None) -> None:
    """Refuse a function that no call of the task fits, with positional or with keyword arguments."""
    parameters = list(task.parameters.values()) if task is not None else []
    if kind := _no_value_of(function):
        raise ConfigurationError(
            f"Task {task_name}: the function given as {option} is {kind}, and is not run as one: write def, and return "
            f"text or a number"
        )
    names = [each.name for each in parameters]
    if task is None or any(each.kind in _SEVERAL for each in parameters):
        return
    needed = [each.name for each in parameters if each.default is each.empty]
    positional: list[tuple[Any, dict[str, None]]] = [
        ((None,) * count, {}) for count in range(len(needed), len(names) + 1)
    ]
    by_name: list[tuple[Any, dict[str, None]]] = [((), dict.fromkeys(needed)), ((), dict.fromkeys(names))]
    if not any(takes(function, args, kwargs) for args, kwargs in positional + by_name):
        raise ConfigurationError(
            f"Task {task_name}: the function given as {option} takes {shown(inspect.signature(function))}, but it is "
            f"called with the arguments of the task, which takes {shown(task)}: "
            f"write {option}=lambda {', '.join(names) or '*args'}: ..."
        )


def _taken(path: str, parameters: Iterable[str]) -> str:
    """Return the parameters of a task, and the one that is probably meant: ``takes order_id: did you mean ...?``."""
    names = sorted(parameters)
    if not names:
        return "takes nothing: leave it out"
    close = closest(path.partition(".")[0], names)
    fix = f"did you mean {close!r}?" if close else "name one of these"
    return f"takes {', '.join(names)}: {fix}"


def _no_value_of(function: Callable[..., Any]) -> str:
    """Return the kind of a function whose call returns a coroutine or generator, "" for an ordinary one."""
    while isinstance(function, partial):
        function = function.func
    for each in (function, inspect.getattr_static(type(function), "__call__", None)):
        if inspect.iscoroutinefunction(each) or inspect.isasyncgenfunction(each):
            return "async def"
        if inspect.isgeneratorfunction(each):
            return "a generator"
    return ""


def takes(function: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any]) -> bool:
    """Return whether a function takes these arguments."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:
        return True  # no signature to check, as for some builtins
    return True


def shown(signature: inspect.Signature) -> str:
    """Return parameters without their types: ``(order_id, amount=0)``."""
    bare = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    return str(inspect.Signature(bare))
