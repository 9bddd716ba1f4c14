"""Read the lines to check, each with its first task."""

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
        status: the status of the limit or key.
        first: the first task in the line; None if the tasks that need its permits wait in other lines.
    """

    status: LimitStatus
    first: First | None

    @property
    def since(self) -> datetime | None:
        """The arrival time of its first task; without fair turns, no other task in the line waits for longer."""
        return self.first.since if self.first else None


class Looked(NamedTuple):
    """The lines that were read.

    Attributes:
        lines: the lines, with their first tasks.
        left: the number of other lines among the statuses; the lines of the keys of a stopped limit do not count.
    """

    lines: tuple[Line, ...]
    left: int


def first_lines(reader: Reader, statuses: Iterable[LimitStatus], most: int) -> Looked:
    """Return the lines to check, so that no limit hides the lines of others.

    These are, for each limit, the line of its oldest task, also if that line is not among the statuses; all lines of
    keys that are stopped by themselves; and ``most`` others, the longest lines of each limit in turn. For a limit that
    is stopped with all its keys, the line of the oldest task is enough.
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
    """Return whether a key is stopped because its whole limit is stopped."""
    return any(override and status.scope(override).key is None for override in (status.paused, status.held_back))


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
