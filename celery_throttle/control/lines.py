"""Who is first in a line, and since when."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_throttle.control.reader import Reader
    from celery_throttle.store.rows import LimitStatus
    from celery_throttle.store.views import First, Oldest

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
    """Return so many lines.

    First come those in which the oldest task of each limit waits, the longest wait first, whether or not they are among
    the statuses. The others follow: those of stopped limits, then those where most wait.
    """
    stands = {each.bucket: each for each in statuses}
    oldest = reader.oldest(list(dict.fromkeys(each.name for each in stands.values())))
    longest = [each.bucket for each in sorted(oldest.values(), key=_since)]
    others = (each.bucket for each in sorted(stands.values(), key=_order) if each.parked)
    looked_at = list(dict.fromkeys([*longest, *others]))[:most]
    stands |= {each.bucket: each for each in reader.stand([each.text for each in looked_at if each not in stands])}
    firsts = reader.firsts(looked_at)
    return tuple(Line(stands[bucket], first) for bucket, first in zip(looked_at, firsts, strict=True))


def _since(oldest: Oldest) -> datetime:
    return oldest.first.since or datetime.min.replace(tzinfo=timezone.utc)


def _order(status: LimitStatus) -> tuple[bool, int, str, str]:
    return not status.stopped, -status.parked, status.name, status.key or ""
