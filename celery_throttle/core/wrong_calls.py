"""Replace Python's bare TypeError for wrong arguments by an error that has the fix."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from celery_throttle.core.checks import closest
from celery_throttle.errors import ConfigurationError

__all__ = ["with_fixes"]

F = TypeVar("F", bound=Callable[..., Any])

#: Arguments that are never suggested for a positional value: ``by='task-id'`` would run, and do more than was meant.
_BY_NAME_ALONE = frozenset({"by", "why"})


def with_fixes(by_place: str = "", /, **instead: str) -> Callable[[F], F]:
    """Make a call of a method with wrong arguments raise a `ConfigurationError` that has the fix.

    Args:
        by_place: the fix for a call with one positional text too many; a template with ``{name}`` (of the object),
            ``{method}`` and ``{value}``.
        instead: the fix for each argument name that belongs elsewhere; also for each missing argument.
    """

    def decorate(function: F) -> F:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            try:
                return function(*args, **kwargs)
            except TypeError:
                wrong = _what_is_wrong(function, args, kwargs, instead, by_place)
                if wrong is None:  # the arguments fit: the function itself raised it
                    raise
            raise ConfigurationError(wrong)

        return call  # type: ignore[return-value]

    return decorate


def _what_is_wrong(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], instead: dict[str, str], by_place: str
) -> str | None:
    signature = inspect.signature(function)
    try:
        signature.bind(*args, **kwargs)
    except TypeError:
        parameters = list(signature.parameters.values())[1:]
    else:
        return None
    what, names = _shown(function, args), [each.name for each in parameters]
    if wrong := [name for name in kwargs if name not in names]:
        name = wrong[0]
        close = closest(name, names)
        fix = instead.get(name) or (f"did you mean {close}=?" if close else _taken(names))
        return f"{what} takes no {name}={kwargs[name]!r:.80}: {fix}"
    places = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    if len(args) - 1 > len(places):
        given_value = args[1 + len(places)]
        value = f"{given_value!r:.80}"
        if by_place and isinstance(given_value, str):
            fix = by_place.format(name=getattr(args[0], "name", None), method=function.__name__, value=value)
            return f"{what} takes no {value}: {fix}"
        free = [name for name in names if name not in places and name not in kwargs]
        if not free or free[0] in _BY_NAME_ALONE:
            return f"{what} takes no {value}: {_taken(names) if free else 'leave it out'}"
        return f"{what} takes {value} by its name alone: write {free[0]}={value}"
    given = {*places[: len(args) - 1], *kwargs}
    missing = [each.name for each in parameters if each.default is each.empty and each.name not in given]
    fix = next((instead[name] for name in missing if name in instead), _taken(names))
    return f"{what} needs {' and '.join(missing)}: {fix}" if missing else f"{what}: {fix}"


def _taken(names: list[str]) -> str:
    return f"it takes {', '.join(names) or 'nothing'}"


def _shown(function: Callable[..., Any], args: tuple[Any, ...]) -> str:
    """Return the called method, with the name of the object if it has one: ``Limit 'gpu': acquire``."""
    cls, method = function.__qualname__.rpartition(".")[0], function.__name__
    if method == "__init__":
        cls = type(args[0]).__name__  # several classes may have this constructor
        name = args[1] if len(args) > 1 and "name" in list(inspect.signature(function).parameters)[1:2] else None
        return f"{cls} {name!r}" if isinstance(name, str) else cls
    name = getattr(args[0], "name", None)
    return f"{cls} {name!r}: {method}" if isinstance(name, str) else f"{cls}: {method}"
