"""Read the options of a task from its class, and refuse those that do nothing, or do not fit its parameters."""

from __future__ import annotations

import inspect
from functools import cache, partial
from typing import TYPE_CHECKING, Any

from celery_throttle.core.arguments import HEADERS, SEVERAL, shown, takes, wants_headers
from celery_throttle.core.checks import closest
from celery_throttle.core.dedup import DEDUP_OPTIONS, PER_CALL, task_dedup
from celery_throttle.core.options import LIMIT_OPTIONS, TASK_OPTIONS, check_option_names, task_policy
from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from celery_throttle.core.dedup import Dedup
    from celery_throttle.core.policy import Policy

__all__ = ["OPTIONS", "check_attributes", "check_part", "misplaced", "options_of", "read_options", "too_late"]

#: The names of a task's options. Celery would send them with the message if a call had them.
OPTIONS = frozenset(TASK_OPTIONS)


def options_of(cls: type[Any]) -> dict[str, Any]:
    """Return the options of a task."""
    # Not getattr: a function among the options would become a method.
    values: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        found = vars(base)
        values |= {name: found[name] for name in OPTIONS & found.keys()}
    return {name: getattr(value, "__func__", value) for name, value in values.items()}


def read_options(task_name: str, cls: type[Any], options: Mapping[str, Any]) -> tuple[Policy | None, Dedup | None]:
    """Return the limits of a task and its identity lock.

    Raises:
        ConfigurationError: an option cannot work.
    """
    signature = _signature(cls)
    policy = task_policy(task_name, {option: options[option] for option in LIMIT_OPTIONS})
    dedup = task_dedup(task_name, cls.singleton, {option: options[option] for option in DEDUP_OPTIONS})
    for option, part in _parts(policy, dedup):
        check_part(task_name, option, part, signature)
    return policy, dedup


def _signature(cls: type[Any]) -> inspect.Signature | None:
    """Return the parameters of a task, without its ``self``; None if the task has no ``run`` that can be called."""
    static = inspect.getattr_static(cls, "run", None)
    run = getattr(static, "__func__", static)
    if not callable(run):
        return None
    signature = inspect.signature(run)
    bound = not isinstance(static, staticmethod)
    kept = list(signature.parameters.values())[bound:]
    return signature.replace(parameters=kept, return_annotation=inspect.Signature.empty)


def _parts(policy: Policy | None, dedup: Dedup | None) -> Iterator[tuple[str, object]]:
    """Yield the options that pick a part of the arguments, each with its value."""
    if policy is not None:
        yield "cost", policy.cost
        for limit in policy.limits:
            yield "key", limit.key
            yield "fair_by", limit.fair_by
    if dedup is not None:
        paths = dedup.unique_on
        yield from (("unique_on", each) for each in (paths if isinstance(paths, tuple) else (paths,)))


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
    if task is None or any(each.kind in SEVERAL for each in parameters):
        return
    needed = [each.name for each in parameters if each.default is each.empty]
    positional: list[tuple[Any, dict[str, None]]] = [
        ((None,) * count, {}) for count in range(len(needed), len(names) + 1)
    ]
    by_name: list[tuple[Any, dict[str, None]]] = [((), dict.fromkeys(needed)), ((), dict.fromkeys(names))]
    extra = {HEADERS: None} if wants_headers(function, task) else {}
    if not any(takes(function, args, kwargs | extra) for args, kwargs in positional + by_name):
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


def check_attributes(task_name: str, cls: type[Any], common: type[Any]) -> None:
    """Refuse a misspelt option among the attributes of a task that neither its own bases nor all tasks have."""
    known = {attribute for base in cls.__mro__[1:] if base not in common.__mro__ for attribute in vars(base)}
    of_all = _attributes(common.__mro__)
    check_option_names(task_name, [each for each in vars(cls) if each not in of_all], known)


@cache
def _attributes(bases: tuple[type, ...]) -> frozenset[str]:
    return frozenset(attribute for base in bases for attribute in vars(base))


def too_late(task_name: str, option: str, value: object) -> str:
    """Return the error text for an option that is set after the task was bound, with the fix."""
    write = f"write it at the task, @app.task(base=Throttled, {option}={value!r:.80})"
    if option == "limit" and isinstance(value, int):
        write = f"write it at the task, or for now ThrottleControl(app).limit(task).override({value})"
    return f"Task {task_name}: {option}={value!r:.80} comes too late: {write}"


def misplaced(task_name: str, options: Mapping[str, Any]) -> str:
    """Return the error text for an option of a task that is given to a call, with the fix."""
    name = next(name for name in options if name in OPTIONS)
    value = f"{options[name]!r:.80}"
    write = f"throttle={{{name!r}: {value}}}" if name in PER_CALL else "it at the task, @app.task(base=Throttled, ...)"
    return f"Task {task_name}: {name}={value} of a call does nothing: write {write}"
