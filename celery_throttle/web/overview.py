"""The rows of the first page: each limit with the totals of its keys, limits that need attention first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from celery_throttle.control.declarations import declared_otherwise
from celery_throttle.control.lines import partly
from celery_throttle.control.reader import readers
from celery_throttle.control.waits import keeps, reasons
from celery_throttle.core.policy import limits_of
from celery_throttle.store.limit_status import State
from celery_throttle.store.standing import key_states
from celery_throttle.tasks.registry import policies_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator
    from datetime import datetime

    from celery_throttle.control.reader import Reader
    from celery_throttle.store.history import LastHour
    from celery_throttle.store.limit_status import LimitStatus

__all__ = ["Overview", "Row", "overview"]

#: Keys of each group that are read, beside all limits.
_READ = 1000
#: Most rows with a last hour, one call for each hundred rows; reading and drawing take 0.1 ms for each row.
_MOST_HOURS = 300
#: Lines with room whose first task is read, each with a call.
_MOST_LINES = 50
_OTHERWISE = State("declared", "declared otherwise by the worker that started last")


@dataclass(frozen=True)
class Row:
    """One limit.

    Attributes:
        status: the state of the limit; for a limit with keys, of all keys together.
        keys: the keys that were read.
        keyed: whether the limit has keys, used or not.
        states: the states of the limit, and of its keys with their number.
        since: arrival of the oldest task in its lines, None if the lines are empty.
        last_hour: the starts of the last hour, None if there were none, or if they were not read.
    """

    status: LimitStatus
    keys: tuple[LimitStatus, ...]
    keyed: bool
    states: tuple[State, ...] = ()
    since: datetime | None = None
    last_hour: LastHour | None = None

    @property
    def unexplained(self) -> LimitStatus | None:
        """The longest line whose numbers do not show why tasks wait; None if there is none."""
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
        """The limit itself, or its key with the least room."""
        return max((self.status, *self.keys), key=_fullness) if self.keyed else self.status

    @property
    def attention(self) -> tuple[int, int, int, str]:
        """The sort key: first stopped lines, then other lines, then limits in a special state, then limits in use."""
        kinds = {each.kind for each in self.states}
        stopped = bool(kinds & {"paused", "held-back", "undeclared"}) or not self.held
        rank = 0 if stopped and self.parked else 1 if self.parked else 2 if kinds - {"full"} else 3 if self.held else 4
        return rank, -self.parked, -self.held, self.status.name


@dataclass(frozen=True)
class Overview:
    """All limits, at one moment.

    Attributes:
        at: the store's time.
        rows: the limits to show.
        found: number of limits with the wanted text in their name.
        limits: number of all limits.
        hours: number of rows, from the first on, whose last hour was read.
        settling: seconds for which no task starts, because the store has just lost its data.
    """

    at: datetime
    rows: tuple[Row, ...]
    found: int
    limits: int
    hours: int
    settling: float


def overview(app: Any, wanted: str, most: int) -> Overview:
    """Read the states of the limits.

    Args:
        app: the Celery app.
        wanted: a text in the names of the limits; "" for all.
        most: most rows to return.

    Raises:
        StoreUnavailable: the store does not answer, or refuses the call.
    """
    app.finalize(auto=True)
    keyed = {name for name, limit in limits_of(policies_of(app).values()).items() if limit.key is not None}
    clocks, rows, of_row = [], [], {}
    for reader in readers(app):
        clocks.append(reader.clock())
        statuses = reader.status(_READ, ("limits", "overrides", "waiting", "used"))
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
        if whole.key is None:  # else the store has keys of a limit that is not declared yet
            has_keys = bool(keys or whole.keys) or name in keyed
            stands = [each for each in whole.states if not (has_keys and each.kind == "full")]
            stands += [_OTHERWISE] if name in otherwise else []
            yield Row(whole, tuple(keys), has_keys, (*stands, *key_states(keys, cut=name in not_all)))


def _completed(app: Any, rows: list[Row], readers_of: dict[str, Reader]) -> Iterator[Row]:
    """Yield the rows with details that are only read for shown rows, one call for all rows of a group."""
    since: dict[str, datetime] = {}
    last_hours: dict[str, LastHour] = {}
    hours = {row.status.name for row in rows[:_MOST_HOURS]}
    for reader in dict.fromkeys(readers_of[row.status.name] for row in rows):
        mine = [row for row in rows if readers_of[row.status.name] is reader]
        oldest = reader.oldest([row.status.name for row in mine])
        since |= {name: each.first.since for name, each in oldest.items() if each.first.since}
        last_hours |= reader.last_hours([row.status.name for row in mine if row.status.name in hours])
    lines = [row.unexplained for row in rows]
    kept = reasons(app, filter(None, lines), most=_MOST_LINES)
    for row, line in zip(rows, lines, strict=True):
        name, reason = row.status.name, (kept[line.bucket],) if line else ()
        yield replace(row, since=since.get(name), last_hour=last_hours.get(name), states=(*row.states, *reason))


def _fullness(status: LimitStatus) -> float:
    return status.held / status.in_force if status.in_force else 0.0
