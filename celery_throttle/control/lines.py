"""Who is first in a line, and since when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from celery_throttle.control.reader import Reader
    from celery_throttle.store.rows import LimitStatus, Parked

__all__ = ["Line", "first_lines"]


@dataclass(frozen=True)
class Line:
    """The line of a limit, or of one key of it.

    Attributes:
        status: how the limit stands.
        first: who is first in it; None if those who need its permits stand in other lines.
    """

    status: LimitStatus
    first: Parked | None

    @property
    def since(self) -> datetime | None:
        """When its first came: but for turns, nobody in it waits for longer."""
        return self.first.since if self.first else None


def first_lines(reader: Reader, statuses: Iterable[LimitStatus], most: int) -> tuple[Line, ...]:
    """Return so many lines: those of limits that are stopped first, then those where most wait; one call for each."""
    waited_for = sorted((each for each in statuses if each.parked), key=_order)
    return tuple(Line(each, _first(reader, each)) for each in waited_for[:most])


def _order(status: LimitStatus) -> tuple[bool, int, str, str]:
    return not status.stopped, -status.parked, status.name, status.key or ""


def _first(reader: Reader, status: LimitStatus) -> Parked | None:
    found = reader.parked(status.bucket, 1)  # of a limit, also those of its keys
    return next((each for each in found if (each.limit, each.key) == status.bucket), None)
