"""The arguments of a call: bound to the task's parameters once, and read by the options that need them."""

from __future__ import annotations

import inspect
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

from celery_throttle.core.identity import pick
from celery_throttle.errors import ConfigurationError, WrongArguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

__all__ = ["HEADERS", "SEVERAL", "Binder", "TaskCall", "shown", "takes", "wants_headers"]

#: The parameter of an option's function that gets the headers of the message.
HEADERS = "headers"
#: The kinds of parameters that take any number of arguments.
SEVERAL = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class Binder:
    """Binds calls to the signature of one function, which is not called.

    `inspect.Signature.bind` is exact, and slow. So a call of a function with ordinary parameters takes a faster way.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.signature = inspect.signature(function)
        parameters = self.signature.parameters
        ordinary = all(parameter.kind is parameter.POSITIONAL_OR_KEYWORD for parameter in parameters.values())
        self._names = tuple(parameters) if ordinary else None
        self._defaults = {name: one.default for name, one in parameters.items() if one.default is not one.empty}

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
        exactly = self.signature.bind(*args, **kwargs)
        exactly.apply_defaults()
        return exactly.arguments


class TaskCall:
    """One call of a task.

    Args:
        task_name: the name of the task.
        function: the body of the task without ``self``, whose parameters count.
        args: the positional arguments of the call.
        kwargs: the other arguments of the call.
        validated: returns the arguments that the body gets; None if it gets those of the call.
        headers: the headers of the message, as far as they are known.
        interrupts: errors that only happen to be raised in a function of the user, and reach the caller as they are.
    """

    def __init__(
        self,
        task_name: str,
        function: Callable[..., Any],
        args: Any,
        kwargs: Any,
        validated: Callable[[tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]] | None = None,
        headers: Mapping[str, Any] | None = None,
        interrupts: tuple[type[Exception], ...] = (),
    ) -> None:
        self._interrupts: tuple[type[Exception], ...] = (ConfigurationError, *interrupts)
        self.task_name, self._given = task_name, (tuple(args or ()), dict(kwargs or {}))
        self._headers: Mapping[str, Any] = headers or {}
        self._function, self._validated = function, validated

    @cached_property
    def _arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self._given if self._validated is None else self._validated(*self._given)

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments that the body gets."""
        return self._arguments[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The other arguments that the body gets."""
        return self._arguments[1]

    @cached_property
    def _binder(self) -> Binder:
        return _binder(self._function)

    @cached_property
    def bound(self) -> dict[str, Any] | None:
        """The arguments by name, with defaults; None if they do not fit the task, which fails when it runs then."""
        try:
            return self._binder.bind(self.args, self.kwargs)
        except TypeError:
            return None

    def why_not(self) -> str:
        """Return why the arguments do not fit the task: ``missing order_id``."""
        signature = self._binder.signature
        try:
            given = signature.bind_partial(*self.args, **self.kwargs).arguments
        except TypeError as error:
            return str(error)
        missing = [
            name
            for name, one in signature.parameters.items()
            if name not in given and one.default is one.empty and one.kind not in SEVERAL
        ]
        return f"missing {', '.join(missing)}"

    def wrong(self, why: str) -> ConfigurationError:
        """Return the error of a call from which an option cannot be read."""
        text = f"Task {self.task_name}: {why}"
        return ConfigurationError(text) if self.bound is not None else WrongArguments(f"{text} ({self.why_not()})")

    def read(self, option: str, part: str | Callable[..., Any]) -> Any:
        """Return the part of the arguments that an option names, or the result of the option's function.

        The function gets the arguments as given. It also gets the task's defaults for arguments that the call left out,
        by name where the function takes names. A parameter ``headers``, which the task has not, gets the headers.

        Raises:
            ConfigurationError: the call has no such part. Or the function raised an error, which is the ``__cause__``,
                or returned None.
        """
        if callable(part):
            return self._result(option, part)
        try:
            # kwargs beside the bound arguments, so that a name inside the task's own **kwargs is found, too.
            return pick({**self.kwargs, **(self.bound or {})}, part)
        except ConfigurationError as error:
            raise self.wrong(f"{option}: {error}") from None

    def _result(self, option: str, function: Callable[..., Any]) -> Any:
        extra = {HEADERS: self._headers} if wants_headers(function, self._binder.signature) else {}
        args, kwargs = self._with_defaults(partial(function, **extra))
        kwargs = {**kwargs, **extra}
        try:
            found = function(*args, **kwargs)
        except self._interrupts:
            raise
        except Exception as error:
            if not takes(function, args, kwargs):
                raise self.wrong(
                    f"the function given as {option} takes {shown(inspect.signature(function))}, but the call has "
                    f"{_counted(args, kwargs)}: give it the parameters of the task"
                ) from None
            raise self.wrong(f"the function given as {option} raised {type(error).__name__}: {error}") from error
        if found is None:
            raise self.wrong(f"the function given as {option} returned None: have it return text or a number")
        return found

    def _with_defaults(self, function: Callable[..., Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments with the defaults, by name or else by position; without them if neither way fits."""
        if self.bound is None:
            return self.args, self.kwargs
        given = self._binder.signature.bind(*self.args, **self.kwargs).arguments
        left_out = {name: value for name, value in self.bound.items() if name not in given}
        ways: list[tuple[tuple[Any, ...], dict[str, Any]]] = [(self.args, {**self.kwargs, **left_out})]
        ways += [((*self.args, *left_out.values()), {})] if not self.kwargs else []
        return next((way for way in ways if takes(function, *way)), (self.args, self.kwargs))


def wants_headers(function: Callable[..., Any], task: inspect.Signature | None) -> bool:
    """Return whether a function has a parameter ``headers`` that is no parameter of the task."""
    try:
        wanted = inspect.signature(function).parameters.get(HEADERS)
    except ValueError:  # no signature to check, as for some builtins
        return False
    named = wanted is not None and wanted.kind in (wanted.POSITIONAL_OR_KEYWORD, wanted.KEYWORD_ONLY)
    return named and (task is None or HEADERS not in task.parameters)


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


def _counted(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
    positional = [f"{len(args)} positional"] if args or not kwargs else []
    return " and ".join(positional + ([f"{', '.join(kwargs)} by name"] if kwargs else []))


_binder = lru_cache(maxsize=512)(Binder)
