"""Call a user's function with the arguments of a task, with good error messages."""

from __future__ import annotations

import inspect
from difflib import get_close_matches
from functools import partial
from typing import TYPE_CHECKING, Any

from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["answer_of", "check_function", "plain", "taken", "why_not"]

_SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def answer_of(
    task_name: str,
    option: str,
    function: Callable[..., Any],
    args: Iterable[Any],
    kwargs: Mapping[str, Any],
    left_out: Mapping[str, Any],
) -> Any:
    """Return the result of a user's function for the arguments of a call.

    The function also gets the task's defaults for arguments that the call left out, by name where the function takes
    names.

    Args:
        task_name: name of the task, for the messages.
        option: the option that has the function as its value.
        function: is called with the arguments as given, and with the defaults.
        args: positional arguments as given.
        kwargs: keyword arguments as given.
        left_out: defaults of the arguments that the call left out, by name.

    Raises:
        ConfigurationError: the function raised an error, which is the ``__cause__``, or returned None.
    """
    args = tuple(args)
    if left_out:
        args, kwargs = _with_defaults(function, args, kwargs, left_out)
    try:
        found = function(*args, **kwargs)
    except ConfigurationError:
        raise
    except Exception as error:
        if not _takes(function, args, kwargs):
            raise ConfigurationError(
                f"Task {task_name}: the function given as {option} takes {_taken_by(function)}, but the call has "
                f"{_counted(args, kwargs)}: give it the parameters of the task"
            ) from None
        raise ConfigurationError(
            f"Task {task_name}: the function given as {option} raised {type(error).__name__}: {error}"
        ) from error
    if found is None:
        raise ConfigurationError(
            f"Task {task_name}: the function given as {option} returned None: have it return text or a number"
        )
    return found


def check_function(task_name: str, option: str, function: object, task: inspect.Signature | None) -> None:
    """Refuse a function that no call of the task fits, with positional or with keyword arguments.

    Args:
        task_name: name of the task, for the message.
        option: the option that has the function as its value.
        function: the value of the option; a value that is no function is not checked here.
        task: the parameters of the task, without its ``self``; None if they are unknown.

    Raises:
        ConfigurationError: the function does not fit; the message has the parameters of both.
    """
    if not callable(function):
        return
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
    if not any(_takes(function, args, kwargs) for args, kwargs in positional + by_name):
        raise ConfigurationError(
            f"Task {task_name}: the function given as {option} takes {_taken_by(function)}, but it is called with the "
            f"arguments of the task, which takes {_shown(task)}: "
            f"write {option}=lambda {', '.join(names) or '*args'}: ..."
        )


def why_not(function: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any]) -> str:
    """Return why a function does not take these arguments: ``missing order_id``."""
    signature = inspect.signature(function)
    try:
        given = signature.bind_partial(*args, **kwargs).arguments
    except TypeError as error:
        return str(error)
    missing = [
        name
        for name, one in signature.parameters.items()
        if name not in given and one.default is one.empty and one.kind not in _SEVERAL
    ]
    return f"missing {', '.join(missing)}"


def taken(path: str, parameters: Iterable[str]) -> str:
    """Return the parameters of a task, and the one that is probably meant: ``takes order_id: did you mean ...?``."""
    names = sorted(parameters)
    if not names:
        return "takes nothing: leave it out"
    close = get_close_matches(path.partition(".")[0], names, n=1)
    fix = f"did you mean {close[0]!r}?" if close else "name one of these"
    return f"takes {', '.join(names)}: {fix}"


def plain(number: float) -> str:
    """Return a number as people write it: 1000000, not 1e+06."""
    return f"{number:.6f}".rstrip("0").rstrip(".")


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


def _with_defaults(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any], left_out: Mapping[str, Any]
) -> tuple[tuple[Any, ...], Mapping[str, Any]]:
    """Return the arguments with the defaults, by name or else by position; without them if neither way fits."""
    ways: list[tuple[tuple[Any, ...], Mapping[str, Any]]] = [(args, {**kwargs, **left_out})]
    ways += [((*args, *left_out.values()), {})] if not kwargs else []
    return next((way for way in ways if _takes(function, *way)), (args, kwargs))


def _takes(function: Callable[..., Any], args: Iterable[Any], kwargs: Mapping[str, Any]) -> bool:
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError:
        return False
    except ValueError:
        return True  # no signature to check, as for some builtins
    return True


def _taken_by(function: Callable[..., Any]) -> str:
    return _shown(inspect.signature(function))


def _shown(signature: inspect.Signature) -> str:
    """Return parameters without their types: ``(order_id, amount=0)``."""
    bare = [each.replace(annotation=each.empty) for each in signature.parameters.values()]
    return str(inspect.Signature(bare))


def _counted(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    positional = [f"{len(args)} positional"] if args or not kwargs else []
    return " and ".join(positional + ([f"{', '.join(kwargs)} by name"] if kwargs else []))
