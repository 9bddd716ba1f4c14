"""Refuse throttled tasks whose `Strategy` does not give its requests to the consumer, so that they miss the gate."""

from __future__ import annotations

import sys
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import TYPE_CHECKING, Any

from celery.utils.imports import symbol_by_name
from celery.worker.strategy import default

from celery_throttle.errors import ConfigurationError
from celery_throttle.tasks.remarks import options_given

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["check_strategy"]

#: The ways to the gate: functions of the consumer and the worker.
_WAYS = frozenset({"on_task_request", "process_task", "apply_eta_task", "_limit_task", "_limit_post_eta"})
#: The most functions that are looked at; beyond that a strategy counts as one that comes by the gate.
_MOST = 500
#: Code that is not looked at: it is not the user's.
_CELERYS = ("celery", "kombu", "billiard", "vine", "celery_throttle")


def check_strategy(task: Any) -> None:
    """Refuse a throttled task whose strategy gives its requests to the pool, or elsewhere, past the gate.

    The code of the strategy is read, and all functions that it names; nothing is called.

    Raises:
        ConfigurationError: no way to the gate was found.
    """
    strategies = [vars(cls)["Strategy"] for cls in type(task).__mro__ if "Strategy" in vars(cls)]
    for strategy in strategies:
        names = _Names(task, strategy)
        if names.come_by_the_gate:
            return
        if "Strategy" not in names.found:  # of the class above
            break
    options = ", ".join(f"{name}={value!r}" for name, value in options_given(type(task)).items())
    raise ConfigurationError(
        f"Task {task.name}: {options} cannot hold, because its Strategy ({_shown(strategies[0])}) does not give its "
        f"requests to consumer.on_task_request as Celery's own does: write one that does, or leave {options} out and "
        f"hold a permit in the body, with Limit('name', 1).acquire(): ..."
    )


class _Names:
    """The names in the code of a strategy and in all functions that it names.

    Attributes:
        found: the names.
        come_by_the_gate: whether one of them leads to the gate, or there is too much code to tell.
    """

    def __init__(self, task: Any, strategy: object) -> None:
        self._task, self.found = task, set[str]()
        left, seen = [_loaded(strategy)], set[int]()
        self.come_by_the_gate = default in left  # of most tasks, at each connection
        while left and not self.come_by_the_gate:
            each = left.pop()
            if id(each) in seen:
                continue
            seen.add(id(each))
            parts = list(self._parts_of(each))
            left += parts
            self.come_by_the_gate = any(part is default for part in (each, *parts)) or len(seen) > _MOST
            self.come_by_the_gate |= not self.found.isdisjoint(_WAYS)

    def _parts_of(self, value: object) -> Iterator[object]:
        """Yield the functions and classes that a function, a class or an object names; note the names."""
        if isinstance(value, (MethodType, staticmethod, classmethod)):
            yield value.__func__
        elif isinstance(value, partial):
            yield from (value.func, *value.args, *value.keywords.values())
        elif isinstance(value, FunctionType):
            names = set(_names_in(value.__code__))
            self.found |= names
            yield from filter(_is_code, self._named(value, names))
        elif not isinstance(value, type):
            yield type(value)
        elif _is_users(value):
            yield from (
                each for cls in value.__mro__ if _is_users(cls) for each in vars(cls).values() if _is_code(each)
            )

    def _named(self, function: FunctionType, names: Iterable[str]) -> Iterator[object]:
        yield from (_content(cell) for cell in function.__closure__ or ())
        named = [function.__globals__.get(name, sys.modules.get(name)) for name in names]
        yield from named
        for owner in (type(self._task), *(each for each in named if isinstance(each, ModuleType))):
            yield from (getattr(owner, name, None) for name in names)


def _loaded(strategy: object) -> object:
    return symbol_by_name(strategy) if isinstance(strategy, str) else strategy


def _names_in(code: CodeType) -> Iterator[str]:
    """Yield the names and texts in code, and in the functions within it."""
    yield from code.co_names
    for each in code.co_consts:
        if isinstance(each, str):
            yield from (each, *each.split(":"))
        elif isinstance(each, CodeType):
            yield from _names_in(each)


def _is_code(value: object) -> bool:
    """Return whether a value is a function or a class of the user's, or Celery's own strategy."""
    if value is default:
        return True
    return isinstance(value, (FunctionType, MethodType, staticmethod, classmethod, partial, type)) and _is_users(value)


def _is_users(value: object) -> bool:
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] not in (*_CELERYS, "builtins")


def _content(cell: Any) -> object:
    try:
        return cell.cell_contents
    except ValueError:  # not set yet
        return None


def _shown(strategy: object) -> str:
    if isinstance(strategy, str):
        return strategy
    return f"{getattr(strategy, '__module__', '')}.{getattr(strategy, '__qualname__', type(strategy).__name__)}"
