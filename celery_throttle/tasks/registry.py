"""The limits and run-once options that the tasks of an app declared."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from celery_throttle.core.arguments import TaskCall
from celery_throttle.core.same_limits import DeclaredLimits
from celery_throttle.settings import settings_of
from celery_throttle.tasks.origin import are_several, is_own

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery_throttle.core.dedup import Dedup
    from celery_throttle.core.policy import Policy

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
    "remember_read",
]

#: By app and task name, never by class, because Celery makes one more class for every app that a task is shared with.
_policies: WeakKeyDictionary[Any, dict[str, Policy]] = WeakKeyDictionary()
_limits: WeakKeyDictionary[Any, DeclaredLimits] = WeakKeyDictionary()
_dedups: WeakKeyDictionary[Any, dict[str, Dedup | None]] = WeakKeyDictionary()
#: By app and task name: the class whose options were read last, and those options.
_read: WeakKeyDictionary[Any, dict[str, tuple[ref[type[Any]], Mapping[str, Any]]]] = WeakKeyDictionary()


def declare(app: Any, name: str, policy: Policy | None, dedup: Dedup | None) -> None:
    """Store the limits of a task, and its run-once options, in place of the earlier ones; None: it has none.

    Raises:
        ConfigurationError: another task declares one of the limits otherwise.
    """
    policies = _policies.setdefault(app, {})
    limits = _limits.setdefault(app, DeclaredLimits())
    _read.get(app, {}).pop(name, None)  # until `remember_read`, after all checks
    before = policies.pop(name, None)
    if before is not None:
        limits.remove(name, before)
    if policy is not None:
        policy = replace(policy, own=before.own if before is not None else is_own(app, name))
        several = are_several()
        limits.check(name, policy, alone=not several, app=app.main if several else None)
        limits.add(name, policy)
        policies[name] = policy
    _dedups.setdefault(app, {})[name] = dedup


def is_read(app: Any, name: str, cls: type[Any], options: Mapping[str, Any]) -> bool:
    """Return whether a task's last declaration was read from this class, with just these options."""
    known = _read.get(app, {}).get(name)
    return known is not None and known[0]() is cls and all(known[1][each] is options[each] for each in options)


def remember_read(app: Any, name: str, cls: type[Any], options: Mapping[str, Any]) -> None:
    """Store that the options of a task were read and checked."""
    _read.setdefault(app, {})[name] = ref(cls), options


def is_bound(task: Any) -> bool:
    """Return whether the options of a task were read."""
    return task.name in _dedups.get(task.app, {})


def call_of(task: Any, args: Any, kwargs: Any) -> TaskCall:
    """Return one call of a task, which its limits and its lock read."""
    return TaskCall(str(task.name), task.run, args, kwargs)


def policies_of(app: Any) -> dict[str, Policy]:
    """Return the limits of every throttled task of the app and their options, by the task's name."""
    return _policies.get(app, {})


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
    return {name: dedup for name, dedup in _dedups.get(app, {}).items() if dedup is not None}


def dedup_of(task: Any) -> Dedup | None:
    """Return the run-once options of a task, None if the task may run any number of times."""
    return _dedups.get(task.app, {}).get(str(task.name))
