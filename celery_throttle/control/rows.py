"""The rows of limits and of their keys, for tables and for the page, with the reason why tasks wait despite room."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from celery_throttle.control.reader import readers
from celery_throttle.core.checks import one_of, whole
from celery_throttle.core.naming import is_outside
from celery_throttle.core.policy import limits_of
from celery_throttle.core.wording import counted, one_line
from celery_throttle.errors import ConfigurationError
from celery_throttle.store.limit_status import State
from celery_throttle.store.standing import key_states, refusals, refusals_of
from celery_throttle.tasks.registry import policies_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery_throttle.control.reader import Reader
    from celery_throttle.core.buckets import Bucket
    from celery_throttle.store.limit_status import LimitStatus
    from celery_throttle.store.parked_tasks import First
    from celery_throttle.store.task_view import TaskView

__all__ = ["LimitKeys", "Order", "Row", "busy", "check_look", "longest_line", "reasons", "rows_of", "with_reasons"]

#: Seconds after which a task that could start is checked again: a worker with a slot takes one in a tenth.
_AGAIN = 0.25
_NO_WORKER = "no-worker"
Order = Literal["attention", "backlog", "name"]


@dataclass(frozen=True)
class LimitKeys:
    """The keys of a limit.

    Attributes:
        rows: the status of the keys.
        known: the number of keys whose names match; of more than 1000, ``rows`` that are not sorted by name are from
            the first 1000 found.
        cut: whether there may be more keys: only the first 20 000 names of the store were read.
    """

    rows: tuple[LimitStatus, ...]
    known: int
    cut: bool = False


def busy(status: LimitStatus) -> tuple[bool, int, int, str, str]:
    """Return the sort key of keys: stopped ones first, then the longest lines."""
    return not status.stopped, *longest_line(status)


def longest_line(status: LimitStatus) -> tuple[int, int, str, str]:
    """Return the sort key of limits and keys: the longest lines first."""
    return -status.parked_in_all, -status.held_in_all, status.name, status.key or ""


def check_look(find: object, sort: object, skip: object) -> None:
    """Check the options of `LimitControl.keys`; `ConfigurationError` if one cannot work."""
    if not isinstance(find, str):
        raise ConfigurationError(f"find must be a part of a name, got {find!r}: write find='acme'")
    one_of("sort", sort, get_args(Order))
    whole("skip", skip, 0, usual=100)


@dataclass(frozen=True)
class Row:
    """A limit, or one key of it.

    Attributes:
        status: the status; for a limit with keys, that of the limit itself.
        keyed: whether this is a limit with keys, used or not.
        keys: of a limit with keys, the keys that were read.
        otherwise: whether the worker that started last has declared the limit otherwise than this code.
        waits: the reason why tasks wait though the limit has room.
    """

    status: LimitStatus
    keyed: bool = False
    keys: tuple[LimitStatus, ...] = ()
    otherwise: bool = False
    waits: State | None = None

    @property
    def states(self) -> tuple[State, ...]:
        """How it stands, with the numbers of keys that stand in some way by themselves."""
        own = [each for each in self.status.states if not (self.keyed and each.kind == "full")]
        own += [State("declared", "declared otherwise by the worker that started last")] if self.otherwise else []
        not_all = sum(bool(key.held or key.parked) for key in self.keys) < self.status.keys
        return (*own, *key_states(self.keys, cut=not_all), *([self.waits] if self.waits else []))

    @property
    def fullest(self) -> LimitStatus:
        """The limit itself, or its key with the least room."""
        return max((self.status, *self.keys), key=_fullness) if self.keyed else self.status

    @property
    def unexplained(self) -> LimitStatus | None:
        """The longest line whose numbers do not show why tasks wait; None if there is none."""
        found = [each for each in (self.status, *self.keys) if _is_open(each)]
        return max(found, key=lambda each: each.parked, default=None)


def rows_of(app: Any, statuses: Iterable[LimitStatus], keys: Iterable[LimitStatus] = ()) -> list[Row]:
    """Return the rows of limits and keys; ``keys``: those whose states are counted in the rows of their limits."""
    statuses = list(statuses)
    of_limits: dict[str, list[LimitStatus]] = {}
    for each in keys:
        of_limits.setdefault(each.name, []).append(each)
    keyed = {name for name, limit in limits_of(policies_of(app).values()).items() if limit.key is not None}
    keyed.update(of_limits, (each.name for each in statuses if each.key is not None or each.keys or each.per))
    return [
        Row(each, keyed=True, keys=tuple(of_limits.get(each.name, ())))
        if each.key is None and each.name in keyed
        else Row(each)
        for each in statuses
    ]


def with_reasons(app: Any, rows: Iterable[Row], most: int | None = None) -> list[Row]:
    """Return the rows with the reason why tasks wait in a line of the limit that has room.

    That line is the longest of those that were read; of a limit whose keys were not read, that of the oldest task.
    ``most``: as in `reasons`.
    """
    rows = list(rows)
    unread = [row.status.name for row in rows if row.status.keys and not row.keys and not row.status.stopped]
    oldest = _oldest_lines(app, unread)
    lines = [oldest.get(row.status.name) if row.keyed and not row.keys else row.unexplained for row in rows]
    found = reasons(app, filter(None, lines), most)
    return [replace(row, waits=found.get(line.bucket)) if line else row for row, line in zip(rows, lines, strict=True)]


def reasons(app: Any, statuses: Iterable[LimitStatus], most: int | None = None) -> dict[Bucket, State]:
    """Return the reason why tasks wait, for each line whose limit has room.

    ``most``: the most lines to check; the state of each other line is "not looked at".
    """
    waiting = [each for each in statuses if _is_open(each)]
    found = {each.bucket: State("unread", "not looked at") for each in waiting}
    waiting = waiting[:most]
    found |= _looked(app, waiting)
    again = [each for each in waiting if found[each.bucket].kind == _NO_WORKER]
    if again:
        time.sleep(_AGAIN)
        found |= _looked(app, again)
    return found


def _is_open(status: LimitStatus) -> bool:
    """Return whether tasks wait though the limit or key lets them start: its own states do not name the reason."""
    return bool(status.parked) and not any(refusals(status))


def _fullness(status: LimitStatus) -> float:
    return status.held / status.in_force if status.in_force else 0.0


def _oldest_lines(app: Any, limits: list[str]) -> dict[str, LimitStatus]:
    """Return the line of the oldest task of each limit, of all keys."""
    found: dict[str, LimitStatus] = {}
    for reader in readers(app):
        lines = {limit: each.bucket for limit, each in reader.oldest(limits).items()}
        statuses = reader.stand([each.text for each in lines.values()])
        found |= dict(zip(lines, statuses, strict=True))
    return found


def _looked(app: Any, waiting: list[LimitStatus]) -> dict[Bucket, State]:
    found = {each.bucket: State("elsewhere", "its tasks wait in other lines") for each in waiting}
    for reader in readers(app) if waiting else ():
        firsts = reader.firsts([each.bucket for each in waiting])
        found |= {
            each.bucket: _reason(reader, each, first)
            for each, first in zip(waiting, firsts, strict=True)
            if first is not None  # None: a limit of another group, or its tasks wait in other lines
        }
    return found


def _reason(reader: Reader, status: LimitStatus, first: First) -> State:
    view = reader.explain(first.task_id)
    if view.state != "parked":
        return State("moving", "its first task has just left the line")
    if view.settling:
        return State("settling", "nothing starts: the store has lost its data")
    refused = {each.status.bucket: each for each in refusals_of(first.task_id, view)}
    own = refused.pop(status.bucket, None)
    if refused:
        return State("elsewhere", f"its first task waits for {next(iter(refused))}")
    if own:
        return State("full", f"its first task needs {counted(own.cost, 'permit')}")
    return _not_taken(view)


def _not_taken(view: TaskView) -> State:
    """Return the reason why no worker takes a task that may start."""
    if view.service:
        return State(_NO_WORKER, f"no worker takes it: it needs one of broker {one_line(view.service)}")
    if view.kind and not view.lacking:
        return State("full", f"waits for a {view.kind} with a permit free")
    if view.lacking:
        missing = f"no live worker has the tag {view.lacking}"
    elif is_outside(view.queue):
        missing = "the process that waits for the permit does not take it"
    else:
        missing = f"no worker takes it (queue {one_line(view.queue)})"
    return State(_NO_WORKER, missing)
