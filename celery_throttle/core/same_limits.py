"""Limits of the same name that tasks of one app declare: all of them have to be the same limit."""

from __future__ import annotations

from collections import defaultdict
from itertools import islice
from typing import TYPE_CHECKING

from celery_throttle.core.wording import counted
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
        # By name, then by what is declared of it and whether the task is the app's own: the tasks that do so.
        self._tasks: defaultdict[str, dict[tuple[tuple[object, ...], bool], _Tasks]] = defaultdict(dict)

    def add(self, task_name: str, policy: Policy) -> None:
        """Keep what a task declares."""
        for limit in policy.limits:
            self._tasks[limit.name].setdefault((_facts(limit), policy.own), {})[task_name] = limit

    def remove(self, task_name: str, policy: Policy) -> None:
        """Forget what a task has declared."""
        for limit in policy.limits:
            self._tasks[limit.name][_facts(limit), policy.own].pop(task_name, None)

    def check(self, task_name: str, policy: Policy, *, alone: bool = True, app: str | None = None) -> None:
        """Refuse a limit that another task declares otherwise.

        Args:
            task_name: the task that declares its limits now; it is not among those that were added.
            policy: what it declares.
            alone: whether the app is the only one; else one of the two tasks may be another app's, where its limit
                counts.
            app: its name, for the message where there are several.

        Raises:
            ConfigurationError: names both tasks.
        """
        for limit in policy.limits:
            for other, its in self._others(limit, own=None if alone else policy.own):
                raise ConfigurationError(
                    f"Task {task_name}: limit {limit.name!r} {_said(limit)} here and {_said(its)} in task "
                    f"{other}{f' of app {app!r}' if app else ''}: give both tasks the same Limit"
                )

    def _others(self, limit: Limit, *, own: bool | None) -> Iterator[tuple[str, Limit]]:
        """Yield a task of each kind that declares a limit otherwise, with its limit.

        Args:
            limit: the limit.
            own: whether it is of a task of the app's own, which are all that are compared then; None: all are.
        """
        if own is False:
            return
        facts = _facts(limit)
        # Another thread may bind tasks, too.
        for (known, theirs), tasks in list(self._tasks[limit.name].items()):
            if known != facts and (own is None or theirs):
                yield from islice(tasks.items(), 1)


def _facts(limit: Limit) -> tuple[object, ...]:
    return limit.declared, limit.key is None, limit.group


def _said(limit: Limit) -> str:
    said = f"has {counted(limit.permits, 'permit') if limit.permits else 'any number of permits'}"
    if limit.rates:
        said += " and " + ", ".join(f"{rate} (burst {burst})" for rate, burst in limit.rates)
    if limit.max_parked:
        said += f", max_parked={limit.max_parked}"
    if limit.key is not None:
        said += " for each key"
    return said + (f" in group {limit.group!r}" if limit.group is not None else "")
