"""The rows of the first page: each limit with the totals of its keys, limits that need attention first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from celery_throttle.control.declarations import declared_otherwise
from celery_throttle.control.reader import readers
from celery_throttle.control.rows import Row, rows_of, with_reasons

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from datetime import datetime

    from celery_throttle.control.reader import Reader
    from celery_throttle.store.history import LastHour
    from celery_throttle.store.limit_status import LimitStatus
    from celery_throttle.store.parked_tasks import Oldest

__all__ = ["LimitRow", "Overview", "overview"]

#: Keys of each group that are read, beside all limits.
_READ = 1000
#: Most rows with a last hour, one call for each hundred rows; reading and drawing take 0.1 ms for each row.
_MOST_HOURS = 300
#: Lines with room whose first task is read, each with a call.
_MOST_LINES = 50


@dataclass(frozen=True)
class LimitRow(Row):
    """A limit, on the first page.

    Attributes:
        since: arrival of the oldest task in its lines, None if the lines are empty.
        last_hour: the starts of the last hour, None if there were none, or if they were not read.
    """

    since: datetime | None = None
    last_hour: LastHour | None = None

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
    rows: tuple[LimitRow, ...]
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
    clocks, rows, groups = [], list[Row](), list(readers(app))
    for reader in groups:
        clocks.append(reader.clock())
        statuses = reader.status(_READ, ("limits", "overrides", "waiting", "used"))
        otherwise = {name for name, _ in declared_otherwise(app, reader, statuses)}
        # Without its limit, a key is one of a limit that is not declared yet.
        limits, keys = ([each for each in statuses if (each.key is None) is whole] for whole in (True, False))
        of_group = rows_of(app, limits, keys)
        rows += [replace(each, otherwise=each.status.name in otherwise) for each in of_group]
    found = sorted((each for each in rows if wanted.lower() in each.status.name.lower()), key=_attention)
    shown = tuple(_completed(groups, with_reasons(app, found[:most], _MOST_LINES)))
    settling = max(settling for _, settling in clocks)
    return Overview(clocks[0][0], shown, len(found), len(rows), min(len(shown), _MOST_HOURS), settling)


def _attention(row: Row) -> tuple[int, int, int, str]:
    """Return the sort key: first stopped lines, then other lines, then limits in a special state, then those in use."""
    kinds, held, parked = {each.kind for each in row.states}, row.status.held_in_all, row.status.parked_in_all
    stopped = bool(kinds & {"paused", "held-back", "undeclared"}) or not held
    rank = 0 if stopped and parked else 1 if parked else 2 if kinds - {"full"} else 3 if held else 4
    return rank, -parked, -held, row.status.name


def _completed(groups: Iterable[Reader], rows: list[Row]) -> Iterator[LimitRow]:
    """Yield the rows with details that are only read for shown rows, one call for all rows of a group."""
    oldest: dict[str, Oldest] = {}
    last_hours: dict[str, LastHour] = {}
    names = [row.status.name for row in rows]
    for reader in groups:
        oldest |= reader.oldest(names)
        last_hours |= reader.last_hours(names[:_MOST_HOURS])
    for row in rows:
        name = row.status.name
        since = oldest[name].first.since if name in oldest else None
        yield LimitRow(row.status, row.keyed, row.keys, row.otherwise, row.waits, since, last_hours.get(name))


def _fullness(status: LimitStatus) -> float:
    return status.held / status.in_force if status.in_force else 0.0
