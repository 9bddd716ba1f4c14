"""The limits and run-once options that the tasks of an app declared, and which app declared a task.

Celery gives every app the shared tasks of all other apps of the process.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from celery import _state
from celery.exceptions import SoftTimeLimitExceeded

from celery_throttle.core.arguments import TaskCall
from celery_throttle.core.release import release_of
from celery_throttle.core.same_limits import DeclaredLimits
from celery_throttle.core.task_codes import TaskNames, limits_by_task
from celery_throttle.errors import ConfigurationError
from celery_throttle.settings import settings_of
from celery_throttle.tasks.models import validator_of

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet
    from types import FrameType

    from celery_throttle.core.dedup import Dedup
    from celery_throttle.core.policy import Policy
    from celery_throttle.core.release import Options

__all__ = [
    "call_of",
    "declare",
    "dedup_of",
    "dedups_of",
    "group_of",
    "groups_of",
    "is_bound",
    "is_read",
    "policies_of",
    "registered",
    "release_of_app",
    "task_names_of",
]


class Registered:
    """The options of the tasks of one app, as they are now: a task may be declared at any time.

    By task name, never by class, because Celery makes one more class for every app that a task is shared with.

    Attributes:
        policies: the limits of each task that has some.
        dedups: the run-once options of each task that was bound; None if it may run any number of times.
        read: the class whose options were read last, and those options.
        limits: the limits of all tasks, to compare them.
        version: another number after each declaration.
    """

    def __init__(self) -> None:
        self.policies: dict[str, Policy] = {}
        self.dedups: dict[str, Dedup | None] = {}
        self.read: dict[str, tuple[ref[type[Any]], Mapping[str, Any]]] = {}
        self.limits = DeclaredLimits()
        self.version = 0

    def declare(
        self,
        app: Any,
        name: str,
        read: tuple[ref[type[Any]], Mapping[str, Any]],
        policy: Policy | None,
        dedup: Dedup | None,
    ) -> None:
        """See `declare`; ``read``: the class and its options."""
        try:
            self.read.pop(name, None)  # in case a check fails
            self._replace_limits(app, name, policy)
            self.dedups[name], self.read[name] = dedup, read
        finally:
            self.version += 1

    def _replace_limits(self, app: Any, name: str, policy: Policy | None) -> None:
        before = self.policies.get(name)
        if before is not None:
            self.limits.remove(name, before)
        try:
            if policy is not None:
                policy = replace(policy, own=before.own if before is not None else _is_own(app, name))
                several = len(list(_state._get_active_apps())) > 1  # type: ignore[attr-defined] # noqa: SLF001
                self.limits.check(name, policy, alone=not several, app=app.main if several else None)
        except ConfigurationError:
            policy = before  # in a worker that runs, the task keeps its limits
            raise
        finally:
            self.policies.pop(name, None)
            if policy is not None:
                self.limits.add(name, policy)
                self.policies[name] = policy


_APPS: WeakKeyDictionary[Any, Registered] = WeakKeyDictionary()
#: By app: a mark of the list of tasks that wait to be bound, and their names.
_waiting: WeakKeyDictionary[Any, tuple[tuple[int, int], AbstractSet[str | None]]] = WeakKeyDictionary()
_ANNOUNCE = _state._announce_app_finalized.__code__  # type: ignore[attr-defined] # noqa: SLF001


def declare(
    app: Any, name: str, cls: type[Any], options: Mapping[str, Any], policy: Policy | None, dedup: Dedup | None
) -> None:
    """Store the limits of a task, and its run-once options, in place of the earlier ones; None: it has none.

    ``cls`` and ``options``: the task's class, and the options from which they were read and checked.

    Raises:
        ConfigurationError: another task declares one of the limits otherwise.
    """
    registered(app).declare(app, name, (ref(cls), options), policy, dedup)


def registered(app: Any) -> Registered:
    """Return the options of the app's tasks: the same object each time."""
    return _APPS.get(app) or _APPS.setdefault(app, Registered())


def is_read(app: Any, name: str, cls: type[Any], options: Mapping[str, Any]) -> bool:
    """Return whether a task's last declaration was read from this class, with just these options."""
    known = registered(app).read.get(name)
    return known is not None and known[0]() is cls and all(known[1][each] is options[each] for each in options)


def is_bound(task: Any) -> bool:
    """Return whether the options of a task were read."""
    return task.name in registered(task.app).dedups


def call_of(task: Any, args: Any, kwargs: Any, headers: Mapping[str, Any] | None = None) -> TaskCall:
    """Return one call of a task, which its limits and its lock read."""
    return TaskCall(str(task.name), task.run, args, kwargs, validator_of(task.run), headers, (SoftTimeLimitExceeded,))


def policies_of(app: Any) -> dict[str, Policy]:
    """Return the limits of every throttled task of the app and their options, by the task's name."""
    return registered(app).policies


def groups_of(app: Any) -> list[str]:
    """Return the groups of all limits and singletons of the app."""
    policy, settings = policies_of(app), settings_of(app)
    named = [each.group for each in policy.values()] + [None for name in dedups_of(app) if name not in policy]
    return sorted({settings.group_of(group) for group in named})


def group_of(task: Any) -> str | None:
    """Return the group of a task's limits."""
    policy = policies_of(task.app).get(str(task.name))
    return policy.group if policy is not None else None


def dedups_of(app: Any) -> dict[str, Dedup]:
    """Return the run-once options of each singleton of the app, by the task's name."""
    every = registered(app).dedups.copy()  # another thread may declare a task
    return {name: dedup for name, dedup in every.items() if dedup is not None}


def release_of_app(app: Any) -> Options:
    """Return the options of an app's tasks and limits, and its settings, to compare with those of other releases."""
    named = registered(app).dedups  # with the tasks that have the base class alone
    return release_of(app.main or "", list(named), policies_of(app), dedups_of(app), settings_of(app))


def dedup_of(task: Any) -> Dedup | None:
    """Return the run-once options of a task, None if the task may run any number of times."""
    return registered(task.app).dedups.get(str(task.name))


def _is_own(app: Any, name: str) -> bool:
    """Return whether this app itself declared a task that is being bound for the first time.

    A shared task is bound when an app is finalized, or by ``shared_task``. Celery does not mark such a task, but the
    call stack shows it. The app's own shared tasks are bound the same way, and are in its list of pending tasks then.
    """
    return not _is_shared(app) or name in _waiting_names(app)


def _is_shared(app: Any) -> bool:
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        announced = frame.f_code is _ANNOUNCE and frame.f_locals.get("app") is app
        if announced or frame.f_globals.get("__name__") == "celery.app":  # the module of shared_task
            return True
        frame = frame.f_back
    return False


def _waiting_names(app: Any) -> AbstractSet[str | None]:
    """Return the names of the tasks that the app declared and has not bound, cached until that list changes."""
    waiting = list(app._pending)  # noqa: SLF001
    which = (len(waiting), id(waiting[-1]) if waiting else 0)
    known = _waiting.get(app)
    if known is None or known[0] != which:
        known = _waiting[app] = which, {_name(app, each) for each in waiting}
    return known[1]


def _name(app: Any, waiting: Any) -> str | None:
    """Return the name of a task whose decorator has not run yet, see `celery.local.PromiseProxy`; None if it has."""
    try:
        (function,) = object.__getattribute__(waiting, "_Proxy__args")
        options = object.__getattribute__(waiting, "_Proxy__kwargs")
    except AttributeError:
        return None  # the decorator has run, because code used the task
    return options.get("name") or app.gen_task_name(function.__name__, function.__module__)  # type: ignore[no-any-return]


def task_names_of(app: Any) -> TaskNames:
    """Return the names of the app's throttled tasks, by their codes in the store."""
    return TaskNames(limits_by_task(policies_of(app), dedups_of(app)))
