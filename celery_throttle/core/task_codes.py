"""Codes that stand for task names in the records of holders: full names would be long, and stored for each run.

The code is empty where one of the task's limits has the name of the task, as with ``limit=5``. Else the code is a hash
of the name. A process that has the same tasks can look the name up.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from zlib import crc32

from celery_throttle.core.naming import is_outside

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from celery_throttle.core.buckets import Bucket
    from celery_throttle.core.policy import Policy

__all__ = ["TaskNames", "code_of", "limits_by_task"]


def limits_by_task(policies: Mapping[str, Policy], singletons: Iterable[str]) -> dict[str, set[str]]:
    """Return the names of the limits of each task that has limits or runs once, by the task's name."""
    limits = {name: {limit.name for limit in policy.limits} for name, policy in policies.items()}
    return {name: set() for name in singletons} | limits


def code_of(name: str, limits: Iterable[str]) -> str:
    """Return the code of a task name, given the names of the task's limits."""
    return "" if name in limits else f"{crc32(name.encode()):08x}"


class TaskNames:
    """The names of tasks by their codes; ``limits``: the names of each task's limits, by the task's name."""

    def __init__(self, limits: Mapping[str, Iterable[str]]) -> None:
        codes = [(code_of(name, theirs), name) for name, theirs in sorted(limits.items())]
        self._own = {name for code, name in codes if not code}
        self._by_code: dict[str, str | None] = {}
        for code, name in codes:
            self._by_code[code] = None if code in self._by_code else name  # ambiguous: two tasks have this code

    def find(self, code: str, buckets: Iterable[Bucket], queue: str) -> str | None:
        """Return the name of the task that has this code and these needs, None if it is not known here."""
        if code:
            return self._by_code.get(code)
        if is_outside(queue):
            return None
        return next((each.name for each in buckets if each.name in self._own), None)
