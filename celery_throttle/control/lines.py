"""Who is first in a line, and since when."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from datetime import datetime

    from celery_throttle.control.reader import Reader
    from celery_throttle.store.rows import LimitStatus
    from celery_throttle.store.views import First

__all__ = ["Line", "first_lines"]


@dataclass(frozen=True)
class Line:
    """The line of a limit, or of one key of it.

    Attributes:
        status: how the limit stands.
        first: who is first in it; None if those who need its permits stand in other lines.
    """

    status: LimitStatus
    first: First | None

    @property
    def since(self) -> datetime | None:
        """When its first came: but for turns, nobody in it waits for longer."""
        return self.first.since if self.first else None


def first_lines(reader: Reader, statuses: Iterable[LimitStatus], most: int) -> tuple[Line, ...]:
    """Return so many lines: those of limits that are stopped first, then those where most wait."""
    looked_at = sorted((each for each in statuses if each.parked), key=_order)[:most]
    firsts = reader.firsts([each.bucket for each in looked_at])
    return tuple(Line(status, first) for status, first in zip(looked_at, firsts, strict=True))


def _order(status: LimitStatus) -> tuple[bool, int, str, str]:
    return not status.stopped, -status.parked, status.name, status.key or ""
