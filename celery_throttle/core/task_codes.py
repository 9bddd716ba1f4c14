"""Which task a holder is a run of, as the store keeps it: as little as will do.

Nothing where one of its limits is called as the task, as with ``limit=5``. Else a hash of its name, which whoever has
the same tasks can read: names are long, and each run would have its own.
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
    """Return the names of the limits of each task that has some, or runs once, by the task's name."""
    limits = {name: {limit.name for limit in policy.limits} for name, policy in policies.items()}
    return {name: set() for name in singletons} | limits


def code_of(name: str, limits: Iterable[str]) -> str:
    """Return what the store keeps of the name of a task that has these limits."""
    return "" if name in limits else f"{crc32(name.encode()):08x}"


class TaskNames:
    """The names of tasks by what the store keeps of them.

    Args:
        limits: the names of the limits of each task, by the task's name.
    """

    def __init__(self, limits: Mapping[str, Iterable[str]]) -> None:
        codes = [(code_of(name, theirs), name) for name, theirs in sorted(limits.items())]
        self._own = {name for code, name in codes if not code}
        self._by_code: dict[str, str | None] = {}
        for code, name in codes:
            self._by_code[code] = None if code in self._by_code else name  # two that are alike: nobody can tell

    def find(self, code: str, buckets: Iterable[Bucket], queue: str) -> str | None:
        """Return the name of the task that has this code and these needs, None if it is not known here."""
        if code:
            return self._by_code.get(code)
        if is_outside(queue):
            return None
        return next((each.name for each in buckets if each.name in self._own), None)
