"""Read one group of limits from the store: status, holders and parked tasks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, takewhile
from typing import TYPE_CHECKING, Any, TypeVar

from celery_throttle.clients import store_client
from celery_throttle.core.buckets import Bucket
from celery_throttle.core.history import MINUTES
from celery_throttle.core.naming import is_outside
from celery_throttle.settings import settings_of
from celery_throttle.store import parked_tasks
from celery_throttle.store.audit import read_changes
from celery_throttle.store.history import histories, last_hours
from celery_throttle.store.holders import read_holders
from celery_throttle.store.identity_locks import read_locks
from celery_throttle.store.limit_status import read_names, read_statuses
from celery_throttle.store.needs import needs_from
from celery_throttle.store.reading import read
from celery_throttle.store.task_view import read_task_view
from celery_throttle.store.unreadable import read_set_aside, read_wrong
from celery_throttle.store.workers import read_declared, read_kinds, read_lost_runs, read_services
from celery_throttle.tasks.registry import groups_of, task_names_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from celery_throttle.core.history import Ring
    from celery_throttle.core.task_codes import TaskNames
    from celery_throttle.store.audit import Change
    from celery_throttle.store.history import History, LastHour
    from celery_throttle.store.holders import Holder
    from celery_throttle.store.identity_locks import LockStatus
    from celery_throttle.store.limit_status import LimitStatus
    from celery_throttle.store.needs import Need
    from celery_throttle.store.parked_tasks import First, Oldest, Parked, ParkedId, ParkedInQueue, Waiter
    from celery_throttle.store.scripts import Call
    from celery_throttle.store.task_view import TaskView
    from celery_throttle.store.unreadable import SetAside, Wrong
    from celery_throttle.store.workers import Declared, LostRun, Service

__all__ = ["AT_ONCE", "MOST", "MOST_LANES", "Reader", "Reclaimed", "readers"]

T = TypeVar("T")

#: The most limits, lines, parked tasks or ids of one call.
AT_ONCE = 100
#: The most holders of one call, because the store decodes the record of each.
_HOLDERS = 50
#: The most names of limits and keys, or holders, that are searched for those of one limit.
_NAMES = 20_000
#: The most lanes that are searched for the queues of parked tasks.
MOST_LANES = 20_000
#: The beginning of the lanes of tasks that wait for an outcome (locks.lua); no other lane sorts between these.
_FOLLOWERS = "[follow:"
#: The keys to repair, in this order: indexes after their sources, the found defects (``aside``) last.
_MENDED = (
    *("limits", "overrides", "workers", "records", "locks", "rates", "turns", "lanes"),
    *("lines", "oldest", "used", "waiting", "sums", "meta", "audit", "aside"),
)
#: The most keys, holders, parked tasks or records of one report.
MOST = 1000


@dataclass(frozen=True)
class Reclaimed:
    """A holder that was cleared because its lease had ended.

    Attributes:
        task_id: the id of the task.
        needs: the permits that the task held; none for a task that only had an identity lock.
    """

    task_id: str
    needs: tuple[Need, ...]


class Reader:
    """Read one group of limits; each method raises `StoreUnavailable` if the store does not answer or refuses."""

    def __init__(self, app: Any, group: str) -> None:
        self.app, self.group = app, group
        self._client = client = store_client(app, group)
        self.store, self.ask = client.store, client.ask
        #: The code of the app's own broker.
        self.broker = settings_of(app).broker_code

    def is_ours(self, broker: str) -> bool:
        """Return whether a queue of this broker is one of the app's own; True for an app without a broker."""
        return not broker or not self.broker or broker == self.broker

    def read(self, reader: Callable[[Any], T], call: Call) -> T:
        """Return the value that a reader makes of the reply to a call."""
        return read(reader, self.ask(call))

    def services(self) -> list[Service]:
        """Return the brokers whose workers use this group of limits."""
        return self.read(read_services, self.store.services())

    def declared(self) -> list[Declared]:
        """Return the declarations of each worker of this group of limits."""
        return self._each(read_declared, self.store.declared, lambda each: each.worker, MOST)

    def lost_runs(self) -> list[LostRun]:
        """Return the runs of singletons whose leases have ended and which may go on, by worker and task."""
        found = self._each(read_lost_runs, self.store.lost, lambda each: each.nonce, MOST)
        return sorted(found, key=lambda each: (each.worker, each.task, each.nonce))

    def _names(self) -> TaskNames:
        return task_names_of(self.app)

    def clock(self) -> tuple[datetime, float]:
        """Return the store's time, and the seconds without starts after the store has lost its data (else 0)."""
        view = self.read(read_task_view, self.store.explain(""))
        return view.now, view.settling

    def store_errors(self) -> int:
        """Return how often workers lost the store, or the store refused a call, as far as they have reported that."""
        return self.read(int, self.store.errors())

    def status(
        self,
        most_keys: int,
        sources: Iterable[str] = ("limits", "overrides", "used", "waiting"),
        most: int | None = None,
    ) -> tuple[LimitStatus, ...]:
        """Return the status of the limits, and of their keys with holders, parked tasks or changes.

        ``most_keys``: of more keys, those that are found first. ``sources``: the keys of the store to search, in this
        order. ``most``: the most rows in all, limits before keys.
        """
        limits: dict[str, None] = {}
        keys: dict[str, None] = {}
        for source in sources:
            for page in self._pages(source) if len(keys) < most_keys else ():
                for name in page:
                    bucket = Bucket.parse(name)
                    limits[bucket.name] = None
                    if bucket.key is not None:
                        keys[name] = None
                if len(limits) >= _NAMES or len(keys) >= most_keys:
                    break
        names = [*sorted(limits)[:_NAMES], *list(keys)[:most_keys]]
        return self.stand(sorted(names[:most], key=_by_name))

    def explain(self, task_id: str) -> TaskView:
        """Return the view of a task."""
        names = self._names()
        view = self.read(lambda raw: read_task_view(raw, names), self.store.explain(task_id))
        if kinds := [each.bucket.kind for each in view.limits if each.bucket.is_open]:
            lacking = set(kinds) - self.read(read_kinds, self.store.services())
            view = replace(view, kind=kinds[0], lacking=next(iter(lacking), ""))
        if self.is_ours(view.broker):
            return view
        known = {each.code: each.broker for each in self.services()}
        return replace(view, service=known.get(view.broker, view.broker))

    def names(self) -> Iterator[str]:
        """Yield the names of all declared limits, and of all limits and keys with runtime overrides."""
        for source in ("limits", "overrides"):
            for page in self._pages(source):
                yield from page

    def overridden_buckets(self, limit: str) -> list[Bucket]:
        """Return the limit, and its keys with runtime overrides."""
        found = {Bucket.parse(name) for page in self._pages("overrides") for name in page}
        return [Bucket(limit), *(each for each in found if each.name == limit and each.key is not None)]

    def keys_of(self, limit: str) -> tuple[list[str], bool]:
        """Return the texts of a limit's keys in use, the overridden ones first, and whether there may be more."""
        found: dict[str, None] = {}
        looked_at = 0
        for source in ("overrides", "waiting", "used"):
            for page in self._pages(source):
                looked_at += len(page)
                parsed = ((name, Bucket.parse(name)) for name in page)
                found.update((name, None) for name, each in parsed if each.name == limit and each.key is not None)
                if looked_at >= _NAMES:
                    return list(found), True
        return list(found), False

    def _pages(self, source: Any) -> Iterator[list[str]]:
        return self.paged(read_names, partial(self.store.limits, source))

    def paged(self, reader: Callable[[Any], tuple[str, T]], call: Callable[[str], Call]) -> Iterator[T]:
        """Yield the pages of a script that takes a cursor, and returns the next one with each page."""
        after, more = "", True
        while more:
            after, page = self.read(reader, call(after))
            yield page
            more = bool(after)

    def _each(
        self,
        reader: Callable[[Any], tuple[str, list[T]]],
        call: Callable[[str], Call],
        name: Callable[[T], str],
        most: int,
    ) -> list[T]:
        """Return the items of the pages of a script, one for each name, until there are ``most``."""
        found: dict[str, T] = {}
        for page in self.paged(reader, call):
            found.update((name(each), each) for each in page)
            if len(found) >= most:
                break
        return list(found.values())

    def stand(self, buckets: list[str], rates: Sequence[tuple[int, int, int]] = ()) -> tuple[LimitStatus, ...]:
        """Return the status of these buckets; with ``rates``, their next start by these rates."""
        pages = (self.read(read_statuses, self.store.status(some, rates)) for some in _portions(buckets))
        return tuple(chain.from_iterable(pages))

    def holders(self, bucket: Bucket | None, most: int) -> tuple[Holder, ...]:
        """Return the holders of all limits, or of this limit among the first `_NAMES` holders."""
        found: dict[str, Holder] = {}
        names = self._names()
        past, more = 0, True
        while more and len(found) < most and (bucket is None or past < _NAMES):
            page, more = self.read(lambda raw: read_holders(raw, names), self.store.holders(past, _HOLDERS))
            past += _HOLDERS
            mine = (each for each in page if bucket is None or any(bucket.includes(need.bucket) for need in each.needs))
            found.update((each.task_id, each) for each in mine)
        return tuple(found.values())[:most]

    def parked(self, bucket: Bucket | None, most: int) -> tuple[Parked, ...]:
        """Return the parked tasks of this limit, or of all limits."""
        return read(parked_tasks.read_parked, self._parked_rows(bucket, most))

    def firsts(self, buckets: Sequence[Bucket]) -> list[First | None]:
        """Return the first task in each of these lines; None for an empty line."""
        names = _portions([each.text for each in buckets])
        return [each for some in names for each in self.read(parked_tasks.read_firsts, self.store.firsts(some))]

    def oldest(self, limits: Sequence[str]) -> dict[str, Oldest]:
        """Return the parked task of each limit with the longest wait; limits with empty lines are left out."""
        found: dict[str, Oldest] = {}
        for some in _portions(limits):
            rows = self.read(parked_tasks.read_oldest, self.store.oldest(some))
            found |= {limit: row for limit, row in zip(some, rows, strict=True) if row}
        return found

    def waiters(self, bucket: Bucket | None, most: int) -> list[Waiter]:
        """Return the waiters in the lines of this limit; None: in all lines, and those that only wait for a slot."""
        return read(parked_tasks.read_waiters, self._parked_rows(bucket, most))

    def _parked_rows(self, bucket: Bucket | None, most: int) -> list[Any]:
        """Return rows of parked tasks, read a page at a time; a task that moves between pages is there once."""
        found: dict[bytes, Any] = {}
        after, left = b"", min(most, MOST)
        while left > 0:
            call = self.store.parked(bucket.text if bucket else None, min(left, AT_ONCE), after)
            after, rows = self.read(parked_tasks.parked_rows, call)
            for row in rows:
                found.setdefault(row[2], row)
            left = left - len(rows) if after else 0
        return list(found.values())

    def waiting_for_outcomes(self) -> Iterator[ParkedId]:
        """Yield the tasks that wait for the outcome of the task that has their identity lock."""
        return takewhile(lambda each: each.what == "waits", self.parked_ids(None, after=_FOLLOWERS))

    def parked_ids(self, bucket: Bucket | None, after: str = "") -> Iterator[ParkedId]:
        """Yield all parked tasks that need permits of this limit (None: all), lane by lane."""
        more = True
        while more:
            call = self.store.parked_ids(bucket.text if bucket else "", after, AT_ONCE)
            following, page = self.read(parked_tasks.read_parked_ids, call)
            yield from page
            # Lines that another program has put out of order, and which are not repaired yet, could cause a loop.
            more = following[1:] > after[1:]
            after = following

    def parked_by_queue(self, most_lanes: int = MOST_LANES) -> tuple[dict[str, ParkedInQueue], bool]:
        """Return the parked tasks of each queue of the app's own broker, and whether there may be more.

        Permits outside of tasks have no queue that a worker consumes.
        """
        found: dict[str, ParkedInQueue] = {}
        after = ""
        for _ in range(0, most_lanes, AT_ONCE):
            following, page = self.read(parked_tasks.read_parked_by_queue, self.store.parked_by_queue(after, AT_ONCE))
            for each in page:
                name = each.queue.name
                if name and not is_outside(name) and self.is_ours(each.queue.broker):
                    found[name] = each.and_also(found.get(name))
            if following[1:] <= after[1:]:
                return found, False
            after = following
        return found, True

    def drop(self, bucket: Bucket | None, tasks: list[str], by: str, why: str) -> int:
        """Drop parked tasks; return the number of tasks that were still parked and would have run."""
        change, dropped = b"", 0
        for some in _portions(tasks):
            text = bucket.text if bucket else ""
            change, count = self.ask(self.store.drop(text, by, why, change.decode(), some))
            dropped += count
        return dropped

    def locks(self, most: int) -> tuple[LockStatus, ...]:
        """Return the identity locks that are held."""
        return tuple(self._each(read_locks, self.store.locks, lambda each: each.identity, most)[:most])

    def unlock(self, identity: str, name: str, by: str, why: str) -> bool:
        """Take an identity lock away from any task; ``name`` is the task's name."""
        return bool(self.ask(self.store.unlock(identity, name=name, by=by, why=why)))

    def set_aside(self, most: int) -> tuple[SetAside, ...]:
        """Return the tasks with unreadable records."""
        return self.read(read_set_aside, self.store.aside(min(most, MOST)))

    def audit(self, bucket: Bucket | None, most: int) -> tuple[Change, ...]:
        """Return the changes at run time of this limit, or all changes, newest first."""
        changes = self.read(read_changes, self.store.audit())
        about = ((each, Bucket(each.limit or "", each.key)) for each in changes)
        return tuple(each for each, other in about if bucket is None or bucket.includes(other))[:most]

    def histories(self, limits: Sequence[str], ring: Ring) -> list[History]:
        """Return the history of each limit."""
        asked = ((some, self.store.history(some, ring)) for some in _portions(limits))
        pages = (self.read(partial(histories, limits=some, ring=ring), call) for some, call in asked)
        return list(chain.from_iterable(pages))

    def last_hours(self, limits: Sequence[str]) -> dict[str, LastHour]:
        """Return the starts of the last hour by limit, in short; limits without a start are left out."""
        found: dict[str, LastHour] = {}
        for some in _portions(limits):
            found |= self.read(partial(last_hours, limits=some), self.store.history(some, MINUTES))
        return found

    def with_last_hour(self, rows: Sequence[LimitStatus]) -> list[LimitStatus]:
        """Return rows of limits and keys, with the starts of the last hour in the rows of limits."""
        found = self.last_hours([row.name for row in rows if row.key is None])
        return [replace(row, last_hour=found.get(row.name)) if row.key is None else row for row in rows]

    def mend(self, *, dry_run: bool) -> list[Wrong]:
        """Drop or set aside unreadable fields, and correct those that contradict the records; return these fields."""
        calls = (partial(self.store.mend, key, mends=not dry_run) for key in _MENDED)
        return list(dict.fromkeys(each for call in calls for page in self.paged(read_wrong, call) for each in page))

    def reap(self) -> Iterator[Reclaimed]:
        """Clear the holders whose lease has ended, and yield them."""
        for each in self._client.reap(patient=True):
            yield Reclaimed(each.task, needs_from(each.needs))


def _portions(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Yield the items in portions for one call each."""
    return (items[first : first + AT_ONCE] for first in range(0, len(items), AT_ONCE))


def readers(app: Any) -> Iterator[Reader]:
    """Yield a reader for each group of limits."""
    for group in sorted({settings_of(app).group, *groups_of(app)}):
        yield Reader(app, group)


def _by_name(text: str) -> tuple[str, str]:
    bucket = Bucket.parse(text)
    return bucket.name, bucket.key or ""
