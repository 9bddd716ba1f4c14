"""Arguments of tasks with ``pydantic=True``: the models that the body gets, for options that read the arguments.

Celery puts a function around such a body, which validates the arguments and calls the body with models. The options
read what the body gets. So the same function is made once more, with a body that returns its arguments.
"""

from __future__ import annotations

import inspect
from functools import lru_cache
from types import CellType, FunctionType
from typing import TYPE_CHECKING, Any

from celery.exceptions import SoftTimeLimitExceeded

if TYPE_CHECKING:
    from collections.abc import Callable

    Arguments = tuple[tuple[Any, ...], dict[str, Any]]

__all__ = ["validator_of"]


def validator_of(run: Callable[..., Any]) -> Callable[..., Arguments] | None:
    """Return a function that returns the arguments that a body gets for those of a call; None if they are the same.

    Arguments that the models refuse are returned as given, because that task fails when it runs.
    """
    # With `autoretry_for` there is one more function around Celery's.
    around = inspect.unwrap(run, stop=lambda each: _validate_of(each) is not None)
    validate = _validate_of(around)
    if validate is None:
        return None
    own = (around.__self__,) if inspect.ismethod(around) else ()

    def validated(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
        try:
            positional, named = validate(*own, *args, **kwargs)
        except SoftTimeLimitExceeded:  # of the task that publishes
            raise
        except Exception:  # noqa: BLE001 - validators of users raise anything
            return args, kwargs
        return positional[len(own) :], named

    return validated


def _validate_of(run: Callable[..., Any]) -> Callable[..., Arguments] | None:
    around = getattr(run, "__func__", run)
    return _validate(around) if isinstance(around, FunctionType) else None


@lru_cache(maxsize=512)
def _validate(around: FunctionType) -> Callable[..., Arguments] | None:
    code = around.__code__
    if around.__globals__.get("__name__") != "celery.app.base" or "task_fun" not in code.co_freevars:
        return None
    cells = dict(zip(code.co_freevars, around.__closure__ or (), strict=True))
    cells["task_fun"] = CellType(lambda *args, **kwargs: (args, kwargs))
    return FunctionType(code, around.__globals__, closure=tuple(cells.values()))
