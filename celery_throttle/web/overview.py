"""What the first page shows: each limit with what its keys have in common, what needs attention first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from celery_throttle.control.diagnosis import declared_otherwise, readers
from celery_throttle.control.reader import partly
from celery_throttle.control.states import State, states
from celery_throttle.control.waits import keeps, reasons
from celery_throttle.core.policy import limits_of
from celery_throttle.core.wording import counted
from celery_throttle.tasks.registry import policies_of

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator
    from datetime import datetime

    from celery_throttle.control.reader import Reader
    from celery_throttle.store.last_hour import LastHour
    from celery_throttle.store.rows import LimitStatus

__all__ = ["Overview", "Row", "overview"]

#: Keys of each group that are read, beside all limits.
_READ = 1000
#: Rows of which the last hour is read, with one call for each hundred: reading and drawing each takes 0.1 ms.
_MOST_HOURS = 300
#: Lines with room whose first task is looked at, each with a call.
_MOST_LINES = 50
_OF_KEYS = {"paused": "paused", "held_back": "held back", "disabled": "disabled", "overrides": "overridden"}


@dataclass(frozen=True)
class Row:
    """One limit.

    Attributes:
        status: how it stands; of a limit with keys, what they have in common.
        keys: those of its keys that were read.
        keyed: whether it has keys, used or not.
        partly: whether there are keys in use that were not read.
        otherwise: whether the worker that started last has declared it otherwise than this code.
        since: when the oldest task in its lines came, None if nobody stands there.
        last_hour: what started on it, None if nothing did, or that was not looked at.
        kept: what keeps tasks waiting that the numbers do not explain, None if they explain all.
    """

    status: LimitStatus
    keys: tuple[LimitStatus, ...]
    keyed: bool
    partly: bool = False
    otherwise: bool = False
    since: datetime | None = None
    last_hour: LastHour | None = None
    kept: State | None = None

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
    def states(self) -> list[State]:
        """What is so of the limit, and of how many of its keys."""
        found = [each for each in states(self.status) if not (self.keyed and each.kind == "full")]
        if self.otherwise:
            found.append(State("declared", "declared otherwise by the worker that started last"))
        least = "at least " if self.partly else ""
        for what, word in _OF_KEYS.items() if self.keys else ():
            count = sum(bool(getattr(each, what)) and not getattr(self.status, what) for each in self.keys)
            if count:
                found.append(State(word.replace(" ", "-"), f"{least}{counted(count, 'key')} {word}"))
        full = sum(each.full for each in self.keys)
        found += [State("full", f"{least}{counted(full, 'key')} full")] if full else []
        return [*found, self.kept] if self.kept else found

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
    limits: dict[str, list[LimitStatus]] = {}
    for each in statuses:
        limits.setdefault(each.name, []).append(each)
    for name, found in limits.items():
        keys = tuple(each for each in found if each.key is not None)
        whole = next((each for each in found if each.key is None), None)
        if whole:  # a limit comes before its keys; without it, its name is not known yet
            has_keys = bool(keys) or bool(whole.keys) or name in keyed
            yield Row(whole, keys, keyed=has_keys, partly=name in not_all, otherwise=name in otherwise)


def _completed(app: Any, rows: list[Row], readers_of: dict[str, Reader]) -> Iterator[Row]:
    """Yield rows with what is only read of those that are shown, of a group together."""
    since: dict[str, datetime] = {}
    last_hours: dict[str, LastHour] = {}
    hours = {row.status.name for row in rows[:_MOST_HOURS]}
    for reader in dict.fromkeys(readers_of[row.status.name] for row in rows):
        mine = [row for row in rows if readers_of[row.status.name] is reader]
        oldest = reader.oldest([row.status.name for row in mine])
        since |= {name: each.first.since for name, each in oldest.items() if each.first.since}
        last_hours |= reader.last_hours([row.status.name for row in mine if row.status.name in hours])
    kept = reasons(app, [line for row in rows if (line := row.unexplained)], most=_MOST_LINES)
    for row in rows:
        name, line = row.status.name, row.unexplained
        of_line = kept[line.bucket] if line else None
        yield replace(row, since=since.get(name), last_hour=last_hours.get(name), kept=of_line)


def _fullness(status: LimitStatus) -> float:
    return status.held / status.in_force if status.in_force else 0.0
