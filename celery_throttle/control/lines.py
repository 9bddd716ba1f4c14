"""Read what the checks of a group of limits look at: its limits, its holders, and its lines with their first tasks."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from functools import cached_property
from typing import TYPE_CHECKING, Any

from celery_throttle.control.findings import waiting
from celery_throttle.control.reader import MOST, Reader
from celery_throttle.core.wording import counted

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from celery_throttle.control.findings import Commands
    from celery_throttle.core.buckets import Bucket
    from celery_throttle.store.holders import Holder
    from celery_throttle.store.limit_status import LimitStatus
    from celery_throttle.store.parked_tasks import First, Oldest

__all__ = ["Line", "Look", "partly"]

#: The most lines of each group of limits that are checked, each with a call.
_MOST_LINES = 50


@dataclass
class Look:
    """One group of limits; each part is read once, when the first check needs it.

    ``patience``: how long a task may wait before its wait is an alarm. ``unchecked`` gets a sentence for each part that
    cannot be read as a whole. ``partly``: the limits of which not all keys were read, once ``statuses`` were read.
    ``left_out``: whether no more checks are made of this group.
    """

    app: Any
    reader: Reader
    commands: Commands
    patience: timedelta
    unchecked: list[str]
    partly: set[str] = field(default_factory=set)
    left_out: bool = False

    @cached_property
    def clock(self) -> tuple[datetime, float]:
        """The store's time, and the seconds without starts after the store has lost its data."""
        return self.reader.clock()

    @cached_property
    def holders(self) -> tuple[Holder, ...]:
        """The holders of permits."""
        found = self.reader.holders(None, MOST)
        if len(found) >= MOST:
            self.unchecked.append(f"More holders than {MOST}.")
        return found

    @cached_property
    def statuses(self) -> tuple[LimitStatus, ...]:
        """The status of the limits and of their keys."""
        found = self.reader.status(MOST, ("limits", "overrides", "waiting", "used"))
        for name, count in partly(found, MOST).items():
            self.partly.add(name)
            self.unchecked.append(f"{counted(count, 'key')} of limit {name}; keys with changes come first.")
        return found

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        """The lines, with their first tasks."""
        lines, left = _first_lines(self.reader, self.statuses, _MOST_LINES)
        if left:
            self.unchecked.append(
                f"{left} of {left + len(lines)} lines: that of the longest wait of each limit comes first, then those "
                "of stopped keys, then of each limit in turn those where most wait."
            )
        return lines

    def leave_out(self) -> None:
        """Make no more checks of this group."""
        self.left_out = True

    def parked(self, scope: Bucket, rows: list[LimitStatus]) -> int:
        """Return the number of parked tasks of a key, or of a limit with all its keys (read or not)."""
        whole = next((each for each in self.statuses if each.bucket == scope), None)
        return whole.parked_in_all if whole else sum(each.parked for each in rows)

    def waiting(self, count: int, since: datetime | None) -> str:
        """Return the number of parked tasks and the wait of the first, in words."""
        return waiting(count, since, self.clock[0])

    def is_long(self, since: datetime | None) -> bool:
        """Return whether a wait since this time is longer than the patience."""
        return since is not None and self.clock[0] - since > self.patience


@dataclass(frozen=True)
class Line:
    """The line of a limit or key; ``first``: None if the tasks that need its permits wait in other lines."""

    status: LimitStatus
    first: First | None

    @property
    def task(self) -> str:
        """The id of its first task, "" if there is none."""
        return self.first.task_id if self.first else ""

    @property
    def since(self) -> datetime | None:
        """The arrival time of its first task; without fair turns, no other task in the line waits for longer."""
        return self.first.since if self.first else None


def _first_lines(reader: Reader, statuses: Iterable[LimitStatus], most: int) -> tuple[tuple[Line, ...], int]:
    """Return the lines to check, so that no limit hides the lines of others, and the number of the other lines.

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
    return lines, len(in_turn[most:])


def _by_limit(status: LimitStatus) -> bool:
    """Return whether a key is stopped because its whole limit is stopped."""
    return any(override and status.scope(override).key is None for override in (status.paused, status.held_back))


def _in_turn(statuses: Iterable[LimitStatus]) -> list[Bucket]:
    """Return one line of each limit, then a second of each, and so on."""
    before: Counter[str] = Counter()
    turns: list[tuple[int, Bucket]] = []
    for each in sorted(statuses, key=lambda each: (-each.parked, each.name, each.key or "")):
        turns.append((before[each.name], each.bucket))
        before[each.name] += 1
    return [bucket for _, bucket in sorted(turns, key=lambda turn: turn[0])]


def _since(oldest: Oldest) -> datetime:
    return oldest.first.since or datetime.min.replace(tzinfo=timezone.utc)


def partly(statuses: Sequence[LimitStatus], most_keys: int) -> dict[str, int]:
    """Return the number of missing keys in use of each limit; limits without missing keys are left out.

    ``statuses``: as `Reader.status` returns them for ``most_keys``. Fewer keys are all keys, even if some came into use
    during the call.
    """
    in_use = [each for each in statuses if each.key is not None and (each.held or each.parked)]
    if sum(each.key is not None for each in statuses) < most_keys:
        return {}
    seen = Counter(each.name for each in in_use)
    missing = {each.name: each.keys - seen[each.name] for each in statuses if each.key is None}
    return {name: count for name, count in missing.items() if count > 0}
