"""Check that tasks of one app which declare a limit of the same name declare the same limit."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING

from celery_throttle.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.core.limits import Limit
    from celery_throttle.core.policy import Policy

__all__ = ["DeclaredLimits"]

_Tasks = dict[str, "Limit"]


class DeclaredLimits:
    """The limits of tasks by name, for a check whose cost does not grow with the number of tasks."""

    def __init__(self) -> None:
        # Tasks by limit name, then by the facts of the limit and whether the app itself declared the task.
        self._tasks: defaultdict[str, dict[tuple[tuple[object, ...], bool], _Tasks]] = defaultdict(dict)

    def add(self, task_name: str, policy: Policy) -> None:
        """Keep the limits of a task."""
        for limit in policy.limits:
            self._tasks[limit.name].setdefault((_facts(limit), policy.own), {})[task_name] = limit

    def remove(self, task_name: str, policy: Policy) -> None:
        """Forget the limits of a task."""
        for limit in policy.limits:
            self._tasks[limit.name][_facts(limit), policy.own].pop(task_name, None)

    def check(self, task_name: str, policy: Policy, *, alone: bool = True, app: str | None = None) -> None:
        """Refuse a limit that another task declares otherwise.

        Args:
            task_name: the task that declares its limits now; it is not among those that were added.
            policy: its limits.
            alone: whether the app is the only one. Else a task may belong to another app, whose limit is another one,
                so only tasks that the app itself declared are compared.
            app: the name of the app, for the message where there are several.

        Raises:
            ConfigurationError: the limits differ; the message names both tasks.
        """
        if not (alone or policy.own):
            return
        for limit in policy.limits:
            for other, its in self._others(limit, own=not alone):
                raise ConfigurationError(
                    f"Task {task_name}: limit {limit.name!r} is {_described(limit)} here and {_described(its)} in task "
                    f"{other}{f' of app {app!r}' if app else ''}: give both tasks the same Limit"
                )

    def _others(self, limit: Limit, *, own: bool) -> Iterator[tuple[str, Limit]]:
        """Yield a task of each kind that declares a limit otherwise; ``own``: of those that the app itself declared."""
        facts = _facts(limit)
        # A copy, because another thread may bind tasks at the same time.
        for (known, theirs), tasks in list(self._tasks[limit.name].items()):
            if known != facts and (theirs or not own):
                yield from islice(tasks.items(), 1)


def _facts(limit: Limit) -> tuple[object, ...]:
    return limit.declared, limit.key is None, limit.group


def _described(limit: Limit) -> str:
    keys, group = " for each key" if limit.key is not None else "", f" in group {limit.group!r}" if limit.group else ""
    return f"{limit.declaration}{keys}{group}"
