"""Read the several limits of a task as one."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery_throttle.control.limit_control import LimitControl
    from celery_throttle.store.audit import Change
    from celery_throttle.store.holders import Holder
    from celery_throttle.store.parked_tasks import Parked

__all__ = ["changes_of", "holders_of", "parked_of"]


def holders_of(limits: Sequence[LimitControl], most: int) -> tuple[Holder, ...]:
    """Return the holders of permits of any of these limits, each once; the first lease to end first."""
    found = {row.task_id: row for each in limits for row in each.holders(most=most)}
    return tuple(sorted(found.values(), key=lambda row: row.lease_left))[:most]


def parked_of(limits: Sequence[LimitControl], most: int) -> tuple[Parked, ...]:
    """Return the parked tasks that need permits of any of these limits, each once; line by line."""
    found = {row.task_id: row for each in limits for row in each.parked(most=most)}
    return tuple(found.values())[:most]


def changes_of(limits: Sequence[LimitControl], most: int) -> tuple[Change, ...]:
    """Return the changes of any of these limits, newest first."""
    found = [row for each in limits for row in each.audit(most=most)]
    return tuple(sorted(found, key=lambda row: row.at, reverse=True))[:most]
