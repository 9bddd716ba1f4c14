"""The options in the code of a worker, as text, by which the releases of workers are compared.

The numbers of limits are not among them, because workers declare these to the store: see `Declaration`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_throttle.core.code_text import text_of
from celery_throttle.core.dedup import DEDUP_OPTIONS, Dedup
from celery_throttle.core.policy import limits_of
from celery_throttle.core.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from celery_throttle.core.limits import Limit
    from celery_throttle.core.policy import Policy

__all__ = ["Options", "release_of"]

#: By kind (``limit``, ``task``, ``app``) and name: each option that does not have its default, as text.
Options = dict[str, dict[str, dict[str, str]]]

#: The settings that each worker has for itself. With another place, prefix or group there is no store in common.
_SETTINGS = ("lease", "on_store_error", "park_durability", "park_replicas", "park_timeout", "enabled")
_DEFAULTS = Settings(url="")
_DEDUP = Dedup()


def release_of(
    app: str, tasks: Iterable[str], policies: Mapping[str, Policy], dedups: Mapping[str, Dedup], settings: Settings
) -> Options:
    """Return the options of an app.

    Args:
        app: the name of the app.
        tasks: the names of all tasks with the base class `Throttled`.
        policies: the limits of each task that has some, by the task's name.
        dedups: the run-once options of each singleton, by the task's name.
        settings: the settings of the app.
    """
    limits = limits_of(policies.values())
    return {
        "limit": {name: dict(_of_limit(limit, settings)) for name, limit in limits.items()},
        "task": {name: dict(_of_task(policies.get(name), dedups.get(name))) for name in sorted(tasks)},
        "app": {app: dict(_changed(_SETTINGS, settings, _DEFAULTS, "throttle_"))},
    }


def _of_limit(limit: Limit, settings: Settings) -> Iterator[tuple[str, str]]:
    for option in ("key", "fair_by", "weights"):
        if (value := getattr(limit, option)) is not None:
            yield option, text_of(value)
    if group := settings.group_of(limit.group):
        yield "group", text_of(group)


def _of_task(policy: Policy | None, dedup: Dedup | None) -> Iterator[tuple[str, str]]:
    if policy is not None:
        yield "limit", ", ".join(limit.name for limit in policy.limits)
        if policy.cost != 1:
            yield "cost", text_of(policy.cost)
        if policy.start_deadline is not None:
            yield "start_deadline", text_of(policy.start_deadline)
    if dedup is not None:
        yield "singleton", "True"
        yield from _changed(DEDUP_OPTIONS, dedup, _DEDUP)


def _changed(names: Iterable[str], values: Any, defaults: Any, prefix: str = "") -> Iterator[tuple[str, str]]:
    for name in names:
        if (value := getattr(values, name)) != getattr(defaults, name):
            yield prefix + name, text_of(value)
