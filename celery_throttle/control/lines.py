"""Who is first in a line, and since when."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_throttle.control.reader import Reader
    from celery_throttle.core.buckets import Bucket
    from celery_throttle.store.limit_status import LimitStatus
    from celery_throttle.store.parked_tasks import First, Oldest

__all__ = ["Line", "Looked", "first_lines"]


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


class Looked(NamedTuple):
    """The lines that were looked at.

    Attributes:
        lines: with their first tasks.
        left: how many others there are among the statuses; those of the keys of a stopped limit count as its one line.
    """

    lines: tuple[Line, ...]
    left: int


def first_lines(reader: Reader, statuses: Iterable[LimitStatus], most: int) -> Looked:
    """Return the lines to look at, so that none hides those of other limits.

    Of each limit the line in which its oldest task waits, whether or not that is among the statuses; all lines of keys
    that are stopped by themselves; and ``most`` others, of each limit in turn those where most wait. Of a limit that is
    stopped with all its keys the oldest task is enough.
    """
    stands = {each.bucket: each for each in statuses}
    oldest = reader.oldest(list(dict.fromkeys(each.name for each in stands.values())))
    longest = [each.bucket for each in sorted(oldest.values(), key=_since)]
    known = set(longest)
    others = [each for each in stands.values() if each.parked and each.bucket not in known and not _by_limit(each)]
    stopped = [each.bucket for each in others if each.stopped]
    in_turn = _in_turn(each for each in others if not each.stopped)
    looked_at = [*longest, *stopped, *in_turn[:most]]
    stands |= {each.bucket: each for each in reader.stand([each.text for each in looked_at if each not in stands])}
    firsts = reader.firsts(looked_at)
    lines = tuple(Line(stands[bucket], first) for bucket, first in zip(looked_at, firsts, strict=True))
    return Looked(lines, len(in_turn[most:]))


def _by_limit(status: LimitStatus) -> bool:
    """Whether a key is stopped because its limit is, with all its keys."""
    return any(said and status.scope(said).key is None for said in (status.paused, status.held_back))


def _in_turn(statuses: Iterable[LimitStatus]) -> list[Bucket]:
    """Return one line of each limit, then a second of each, and so on."""
    before: Counter[str] = Counter()
    turns: list[tuple[int, Bucket]] = []
    for each in sorted(statuses, key=_order):
        turns.append((before[each.name], each.bucket))
        before[each.name] += 1
    return [bucket for _, bucket in sorted(turns, key=lambda turn: turn[0])]


def _since(oldest: Oldest) -> datetime:
    return oldest.first.since or datetime.min.replace(tzinfo=timezone.utc)


def _order(status: LimitStatus) -> tuple[int, str, str]:
    return -status.parked, status.name, status.key or ""
