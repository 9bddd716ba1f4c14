"""Log at a worker's start which tasks are throttled, by which store, and problems of that store."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from celery_throttle.core.policy import limits_of
from celery_throttle.core.store_url import shown
from celery_throttle.core.wording import counted, shortened
from celery_throttle.store.servers.client import connection_factory
from celery_throttle.store.servers.doctor import (
    eviction_of,
    findings,
    info_of,
    may_hint,
    persistence_of,
    server_of,
    setting_of,
)
from celery_throttle.store.servers.layouts import layout_findings
from celery_throttle.store.servers.safety import safety_findings
from celery_throttle.tasks.registry import dedups_of, policies_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from celery_throttle.core.settings import Settings
    from celery_throttle.worker.groups import Group

__all__ = ["greet"]

logger = logging.getLogger(__name__)

_NAMED = 5
_HINTS = {True: "hints work", False: "hints are REFUSED", None: "hints unknown"}
_PERSISTENCE = {"none": "NO persistence", None: "persistence unknown"}
_EVICTION = {"noeviction": "nothing is evicted", None: "eviction unknown"}


@dataclass(frozen=True)
class _Store:
    """The server of a group of limits, as far as its user may read."""

    server: str | None
    hints: bool | None
    persistence: str | None
    eviction: str | None
    findings: tuple[str, ...]

    def __str__(self) -> str:
        kept = _PERSISTENCE.get(self.persistence) or f"persistence by {self.persistence}"
        evicts = _EVICTION.get(self.eviction) or f"keys MAY BE EVICTED ({self.eviction})"
        server = f"{self.server}, " if self.server else ""
        return f"{server}{_HINTS[self.hints]}, {kept}, {evicts}"


def greet(app: Any, settings: Settings, groups: Sequence[Group]) -> None:
    """Log problems of the store that could break a limit, and one line with the throttled tasks and the store.

    Args:
        app: the worker's app.
        settings: the settings of the app.
        groups: the worker's groups of limits, each in its place in Redis.
    """
    stores = [_look(settings, group) for group in groups]
    for finding in dict.fromkeys(finding for store in stores if store for finding in store.findings):
        logger.warning("celery_throttle: %s", finding)
    if settings.enabled:  # else `parked_leftovers` has logged why the gate is there
        store = " and ".join(dict.fromkeys(str(store or "it does not answer") for store in stores))
        logger.info("celery_throttle: %s; store %s: %s", _throttled(app), shown(settings.url), store)


def _throttled(app: Any) -> str:
    policies, dedups = policies_of(app), dedups_of(app)
    parts = [f"{counted(len({*policies, *dedups}), 'task')} throttled"]
    if limits := sorted(limits_of(policies.values())):
        parts.append(f"limit{'s' if len(limits) > 1 else ''} {shortened(limits, _NAMED)}")
    if dedups:
        parts.append(f"{len(dedups)} run once")
    return ", ".join(parts)


def _look(settings: Settings, group: Group) -> _Store | None:
    """Return the state of the server, None if it does not answer; the next call that needs it logs that."""
    keys = settings.keys(group.calls.group)
    make: Any = connection_factory(settings.url, keys)
    try:
        hints = may_hint(make(), keys.wake)
    except (RedisError, OSError):
        return None
    info = info_of(group.client)
    others = tuple(layout_findings(group.client, keys))
    if not info:  # without the right to INFO, skip the other checks
        return _Store(None, hints, None, None, others)
    return _Store(
        server_of(info),
        hints,
        persistence_of(info, setting_of(group.client, "save")),
        eviction_of(group.client, info),
        (*findings(group.client, settings.url, info), *others, *_unsafe(settings, group)),
    )


def _unsafe(settings: Settings, group: Group) -> Iterable[str]:
    durability = settings.durability
    return () if durability is None else safety_findings(group.client, durability)
