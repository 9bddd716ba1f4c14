"""Warn about options and settings of an app that are allowed, but have no effect or another one than expected."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery import Task

from celery_throttle.core.checks import closest
from celery_throttle.core.options import TASK_OPTIONS
from celery_throttle.settings import without_effect
from celery_throttle.tasks.awaiting import not_awaited
from celery_throttle.tasks.registry import dedup_of, policies_of
from celery_throttle.tasks.throttled import Throttled

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["options_given", "remarks"]

#: Words that other libraries use with other meanings: they count only beside an option that is clearly ours.
_COMMON = frozenset({"key", "burst", "weights", "cost", "remember"})


def remarks(app: Any, pool: Any = None) -> Iterator[str]:
    """Yield a sentence, with the fix, for each setting and each option without effect, or with an unexpected one.

    ``pool`` is the class of the worker's pool; None: as far as settings and environment name it.
    """
    for name, right in without_effect(app):
        yield f"Setting {name} has no effect: write {right}"
    yield from _of_annotations(app)
    of_all = issubclass(app.Task, Throttled)  # then it is no sign of a forgotten option
    for name, task in sorted(app.tasks.items()):
        if name.startswith(("celery.", "celery_throttle.")):
            continue
        if isinstance(task, Throttled) and (text := not_awaited(name, type(task), app, pool)):
            yield text
        given = options_given(type(task))
        if not isinstance(task, Throttled):
            if not _COMMON.issuperset(given):
                options = ", ".join(f"{option}={value!r}" for option, value in given.items())
                yield (
                    f"Task {name} has {options} but not base=Throttled: it is NOT limited. "
                    f"Write @app.task(base=Throttled, {options})"
                )
        elif not given and name not in policies_of(app) and dedup_of(task) is None and not of_all:
            yield (
                f"Task {name} has base=Throttled but no option of it: it is NOT limited. "
                f"{_write(task)}, or leave the base out"
            )


def _of_annotations(app: Any) -> Iterator[str]:
    """Yield a sentence for each of our options that ``task_annotations`` gives to a task that does not exist."""
    annotations = app.conf.task_annotations or ()
    for each in annotations if isinstance(annotations, (list, tuple)) else (annotations,):
        for name, options in each.items() if isinstance(each, dict) else ():
            ours = {option: options[option] for option in TASK_OPTIONS if option in options}
            if name == "*" or name in app.tasks or _COMMON.issuperset(ours):
                continue
            close = closest(name, app.tasks)
            given = ", ".join(f"{option}={value!r:.80}" for option, value in ours.items())
            yield (
                f"task_annotations gives {name!r} {given}, but there is no such task"
                f"{f': did you mean {close!r}?' if close else ''}"
            )


def _write(task: Any) -> str:
    if task.rate_limit:
        return f"Its rate_limit is Celery's, which each worker counts for itself: write rate={task.rate_limit!r}"
    return "Write limit=5, rate='100/m' or singleton=True beside it"


def options_given(cls: type[Any]) -> dict[str, Any]:
    """Return our options that a task has, without those that one of its other bases uses with another meaning."""
    mine = [each for each in cls.__mro__ if issubclass(each, Throttled) and each is not Throttled] or [cls]
    theirs = {name for each in cls.__mro__ if each not in mine and each not in (Throttled, Task) for name in vars(each)}
    given: dict[str, Any] = {}
    for each in mine:
        given = {name: vars(each)[name] for name in TASK_OPTIONS if name in vars(each) and name not in theirs} | given
    return given
