"""The options of a throttled task, checked when it is bound."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

from celery_throttle.core.dedup import DEDUP_OPTIONS
from celery_throttle.core.limits import Limit
from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["TASK_OPTIONS", "check_option_names", "check_same", "task_limit"]

#: What ``@app.task(base=Throttled, ...)`` understands beside Celery's own options.
TASK_OPTIONS = ("limit", "singleton", *DEDUP_OPTIONS)
#: What other throttles call things that this version cannot do: ignoring them would leave a task unprotected.
_NOT_YET = frozenset({"rate", "burst", "key", "cost"})


def task_limit(task_name: str, option: object) -> Limit | None:
    """Return the limit that ``limit=option`` means for this task: a number is a limit named after the task.

    Raises:
        ConfigurationError: the option is neither a whole number of 1 or more, nor a `Limit`, nor None.
    """
    if option is None or isinstance(option, Limit):
        return option
    if isinstance(option, bool) or not isinstance(option, int) or option < 1:
        raise ConfigurationError(
            f"Task {task_name}: limit must be a whole number of 1 or more or a Limit, got {option!r}; "
            f"write limit=5 or limit=Limit('gpu', 4)"
        )
    return Limit(task_name, option)


def check_same(task_name: str, limit: Limit, declared: Mapping[str, Limit]) -> None:
    """Refuse a limit that another task of the app declares with another number.

    Args:
        task_name: the task that declares the limit now.
        limit: what it declares.
        declared: the limits declared so far, by task name.

    Raises:
        ConfigurationError: names both tasks.
    """
    for other, known in declared.items():
        if other != task_name and known.name == limit.name and known != limit:
            raise ConfigurationError(
                f"Task {task_name}: limit {limit.name!r} has {limit.permits} permits here and {known.permits} in task "
                f"{other}: give both tasks the same Limit"
            )


def check_option_names(task_name: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuse an option that looks like a misspelt one of ours.

    Args:
        task_name: for the message.
        given: names of the attributes that the task class sets itself.
        known: names that Celery or the task's own base classes define; they are none of our business.

    Raises:
        ConfigurationError: a name is close to an option of ours, or names what only other versions can do, and nobody
            else knows it.
    """
    known = set(known)
    for name in given:
        if name in known or name in TASK_OPTIONS or name.startswith("_"):
            continue
        if name in _NOT_YET:
            raise ConfigurationError(f"Task {task_name}: option {name!r} is not supported by this version; remove it")
        close = get_close_matches(name.lower(), TASK_OPTIONS, n=1, cutoff=0.75)
        if close:
            raise ConfigurationError(f"Task {task_name}: unknown option {name!r}, did you mean {close[0]!r}?")
