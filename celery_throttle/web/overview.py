"""The rows of the first page: each limit with the totals of its keys, limits that need attention first."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from celery_throttle.control.declarations import declared_otherwise
from celery_throttle.control.reader import readers
from celery_throttle.control.rows import Row, rows_of, with_reasons

if TYPE_CHECKING:
    from datetime import datetime

    from celery_throttle.store.history import LastHour
    from celery_throttle.store.parked_tasks import Oldest

__all__ = ["Overview", "overview"]

#: Keys of each group that are read, beside all limits.
_READ = 1000
#: Most rows with a last hour, one call for each hundred rows; reading and drawing take 0.1 ms for each row.
_MOST_HOURS = 300
#: Lines with room whose first task is read, each with a call.
_MOST_LINES = 50


@dataclass(frozen=True)
class Overview:
    """All limits, at one moment.

    Attributes:
        at: the store's time.
        rows: the limits to show.
        found: number of limits with the wanted text in their name.
        settling: seconds for which no task starts, because the store has just lost its data.
        hours: number of rows, from the first on, whose last hour was read.
        last_hours: the starts of the last hour by limit; limits without a start are left out.
        oldest: the oldest task in the lines of each limit; limits with empty lines are left out.
    """

    at: datetime
    rows: tuple[Row, ...]
    found: int
    settling: float
    hours: int
    last_hours: dict[str, LastHour]
    oldest: dict[str, Oldest]


def overview(app: Any, wanted: str, most: int) -> Overview:
    """Read the states of the limits with a text in their names; ``most``: the most rows to return."""
    app.finalize(auto=True)
    groups, clocks = list(readers(app)), []
    rows: list[Row] = []
    for reader in groups:
        clocks.append(reader.clock())
        statuses = reader.status(_READ, ("limits", "overrides", "waiting", "used"))
        otherwise = {name for name, _ in declared_otherwise(app, reader, statuses)}
        # Without its limit, a key is one of a limit that is not declared yet.
        limits, keys = ([each for each in statuses if (each.key is None) is whole] for whole in (True, False))
        of_group = rows_of(app, limits, keys)
        rows += [replace(each, otherwise=each.status.name in otherwise) for each in of_group]
    found = sorted((each for each in rows if wanted.lower() in each.status.name.lower()), key=_attention)
    shown = tuple(with_reasons(app, found[:most], _MOST_LINES))
    names = [row.status.name for row in shown]
    last_hours: dict[str, LastHour] = {}
    oldest: dict[str, Oldest] = {}
    for reader in groups:
        last_hours |= reader.last_hours(names[:_MOST_HOURS])
        oldest |= reader.oldest(names)
    settling, hours = max(settling for _, settling in clocks), min(len(shown), _MOST_HOURS)
    return Overview(clocks[0][0], shown, len(found), settling, hours, last_hours, oldest)


def _attention(row: Row) -> tuple[int, int, int, str]:
    """Return the sort key: first stopped lines, then other lines, then limits in a special state, then those in use."""
    kinds, held, parked = {each.kind for each in row.states}, row.status.held_in_all, row.status.parked_in_all
    stopped = bool(kinds & {"paused", "held-back", "undeclared"}) or not held
    rank = 0 if stopped and parked else 1 if parked else 2 if kinds - {"full"} else 3 if held else 4
    return rank, -parked, -held, row.status.name
