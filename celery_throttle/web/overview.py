"""What the first page shows: each limit with what its keys have in common, what needs attention first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from celery_throttle.control.diagnosis import declared_otherwise, readers
from celery_throttle.control.limit_history import last_hours_of
from celery_throttle.control.reader import partly
from celery_throttle.control.states import State, key_states, states
from celery_throttle.control.waits import keeps, reasons
from celery_throttle.core.policy import limits_of
from celery_throttle.tasks.registry import policies_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator
    from datetime import datetime

    from celery_throttle.control.reader import Reader
    from celery_throttle.store.last_hour import LastHour
    from celery_throttle.store.limit_status import LimitStatus

__all__ = ["Overview", "Row", "overview"]

#: Keys of each group that are read, beside all limits.
_READ = 1000
#: Rows of which the last hour is read, with one call for each hundred: reading and drawing each takes 0.1 ms.
_MOST_HOURS = 300
#: Lines with room whose first task is looked at, each with a call.
_MOST_LINES = 50
_OTHERWISE = State("declared", "declared otherwise by the worker that started last")


@dataclass(frozen=True)
class Row:
    """One limit.

    Attributes:
        status: how it stands; of a limit with keys, what they have in common.
        keys: those of its keys that were read.
        keyed: whether it has keys, used or not.
        states: what is so of the limit, and of how many of its keys.
        since: when the oldest task in its lines came, None if nobody stands there.
        last_hour: what started on it, None if nothing did, or that was not looked at.
    """

    status: LimitStatus
    keys: tuple[LimitStatus, ...]
    keyed: bool
    states: tuple[State, ...] = ()
    since: datetime | None = None
    last_hour: LastHour | None = None

    @property
    def unexplained(self) -> LimitStatus | None:
        """Its longest line whose numbers do not show why tasks wait; None if there is none."""
        found = [each for each in (self.status, *self.keys) if each.parked and not keeps(each)]
        return max(found, key=lambda each: each.parked, default=None)

    @property
    def held(self) -> int:
        """Permits held, of all keys."""
        return self.status.held_in_all

    @property
    def parked(self) -> int:
        """Tasks parked, of all keys."""
        return self.status.parked_in_all

    @property
    def fullest(self) -> LimitStatus:
        """The limit, or that of its keys which has least room."""
        return max((self.status, *self.keys), key=_fullness) if self.keyed else self.status

    @property
    def attention(self) -> tuple[int, int, int, str]:
        """What it is sorted by: what waits and cannot start, what waits, what somebody changed, what is in use."""
        kinds = {each.kind for each in self.states}
        stopped = bool(kinds & {"paused", "held-back", "undeclared"}) or not self.held
        rank = 0 if stopped and self.parked else 1 if self.parked else 2 if kinds - {"full"} else 3 if self.held else 4
        return rank, -self.parked, -self.held, self.status.name


@dataclass(frozen=True)
class Overview:
    """All limits, at one moment.

    Attributes:
        at: the store's time.
        rows: those that are shown.
        found: how many there are with that in their name.
        limits: how many there are.
        hours: of how many of the rows, the first ones, the last hour was looked at.
        settling: seconds for which nothing starts, since the store has just lost its data.
    """

    at: datetime
    rows: tuple[Row, ...]
    found: int
    limits: int
    hours: int
    settling: float


def overview(app: Any, wanted: str, most: int) -> Overview:
    """Read how the limits stand.

    Args:
        app: the Celery app.
        wanted: a part of the names of those that are meant.
        most: how many at most.

    Raises:
        StoreUnavailable: the store does not answer, or refuses.
    """
    app.finalize(auto=True)
    keyed = {name for name, limit in limits_of(policies_of(app).values()).items() if limit.key is not None}
    clocks, rows, of_row = [], [], {}
    for reader in readers(app):
        clocks.append(reader.clock())
        statuses = reader.status(_READ, ("limits", "said", "waiting", "used"))
        not_all = partly(statuses, _READ)
        otherwise = {name for name, _ in declared_otherwise(app, reader, statuses)}
        for row in _rows(statuses, keyed, otherwise, not_all):
            rows.append(row)
            of_row[row.status.name] = reader
    found = sorted((each for each in rows if wanted.lower() in each.status.name.lower()), key=lambda row: row.attention)
    shown = tuple(_completed(app, found[:most], of_row))
    settling = max(settling for _, settling in clocks)
    return Overview(clocks[0][0], shown, len(found), len(rows), min(len(shown), _MOST_HOURS), settling)


def _rows(
    statuses: Iterable[LimitStatus], keyed: set[str], otherwise: set[str], not_all: Container[str]
) -> Iterator[Row]:
    for name, found in groupby(statuses, attrgetter("name")):  # a limit comes before its keys
        whole, *keys = found
        if whole.key is None:  # else the name of the limit is not known yet
            has_keys = bool(keys or whole.keys) or name in keyed
            stands = [each for each in states(whole) if not (has_keys and each.kind == "full")]
            stands += [_OTHERWISE] if name in otherwise else []
            yield Row(whole, tuple(keys), has_keys, (*stands, *key_states(keys, cut=name in not_all)))


def _completed(app: Any, rows: list[Row], readers_of: dict[str, Reader]) -> Iterator[Row]:
    """Yield rows with what is only read of those that are shown, of a group together."""
    since: dict[str, datetime] = {}
    last_hours: dict[str, LastHour] = {}
    hours = {row.status.name for row in rows[:_MOST_HOURS]}
    for reader in dict.fromkeys(readers_of[row.status.name] for row in rows):
        mine = [row for row in rows if readers_of[row.status.name] is reader]
        oldest = reader.oldest([row.status.name for row in mine])
        since |= {name: each.first.since for name, each in oldest.items() if each.first.since}
        last_hours |= last_hours_of(reader, [row.status.name for row in mine if row.status.name in hours])
    lines = [row.unexplained for row in rows]
    kept = reasons(app, filter(None, lines), most=_MOST_LINES)
    for row, line in zip(rows, lines, strict=True):
        name, reason = row.status.name, (kept[line.bucket],) if line else ()
        yield replace(row, since=since.get(name), last_hour=last_hours.get(name), states=(*row.states, *reason))


def _fullness(status: LimitStatus) -> float:
    return status.held / status.in_force if status.in_force else 0.0
