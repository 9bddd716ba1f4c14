"""Bind the arguments of a call to parameters, as Python does."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

__all__ = ["Binder"]


class Binder:
    """Binds calls to the signature of one function.

    `inspect.Signature.bind` is exact, and slow. So a call of a function with ordinary parameters takes a faster way.

    Args:
        function: the function whose signature counts; it is not called.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters
        ordinary = all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters.values())
        self._names = tuple(parameters) if ordinary else None
        self._defaults = {name: one.default for name, one in parameters.items() if one.default is not one.empty}
        by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._by_place = tuple(name for name, one in parameters.items() if one.kind in by_place)

    def left_out(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the defaults of the parameters that a call leaves out, by name."""
        if not self._defaults:
            return {}
        given = {*self._by_place[: len(args)], *kwargs}
        return {name: value for name, value in self._defaults.items() if name not in given}

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments by name, in the order of the parameters, with defaults.

        Raises:
            TypeError: the function does not take these arguments.
        """
        names = self._names
        if names is not None and len(args) <= len(names):
            given = dict(zip(names, args, strict=False))
            if len(given) == len(names) and not kwargs:
                return given
            others = {**self._defaults, **kwargs}
            try:
                bound = given | {name: others[name] for name in names[len(args) :]}
            except KeyError:
                pass  # an argument is missing: let bind() raise
            else:
                if kwargs.keys() <= bound.keys() and kwargs.keys().isdisjoint(given):
                    return bound
        exactly = self._signature.bind(*args, **kwargs)
        exactly.apply_defaults()
        return exactly.arguments
