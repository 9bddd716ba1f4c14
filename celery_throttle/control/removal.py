"""Delete all data of the library: the last step of its removal."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from celery_throttle.control.reader import readers
from celery_throttle.core.keys import Keys
from celery_throttle.core.wording import counted
from celery_throttle.errors import StoreInUse
from celery_throttle.settings import settings_of
from celery_throttle.store.keyspace import count_keys, delete_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.control.reader import Reader

__all__ = ["StoredData", "remove_data", "stored_data"]

#: The most holders, locks and unreadable records that are counted for each group.
_MOST = 20_000
_REMEMBERED = ("done", "failed")


@dataclass(frozen=True)
class StoredData:
    """The data of the library under a prefix.

    Attributes:
        prefix: the prefix of the keys.
        spaces: the beginnings of the keys: one for each group of limits.
        keys: the number of keys, or of deleted keys.
        size: their size in bytes; None if the server does not report sizes.
        workers: the number of workers that called within the last five minutes.
        parked: the number of parked tasks.
        held: the number of holders of permits and of running tasks with an identity lock, plus the held locks and
            semaphores of ``celery_throttle.primitives``.
        locks: the number of identity locks of calls that are published, or run.
        remembered: the number of remembered calls, which do not run again.
        set_aside: the number of tasks with unreadable records, which are stored with their messages.
        others: the beginnings of other keys with the same prefix; these keys stay.
    """

    prefix: str
    spaces: tuple[str, ...]
    keys: int
    size: int | None
    workers: int
    parked: int
    held: int
    locks: int
    remembered: int
    set_aside: int
    others: tuple[str, ...] = ()

    @property
    def in_use(self) -> tuple[str, ...]:
        """The reasons against deleting, each with the fix."""
        return tuple(_in_use(self))

    @property
    def lost(self) -> tuple[str, ...]:
        """The consequences of deleting for tasks."""
        return tuple(_lost(self))

    def __str__(self) -> str:
        size = "" if self.size is None else f", {self.size} bytes"
        return (
            f"{counted(self.keys, 'key')} of {' and '.join(self.spaces)}{size}: {self.parked} parked, {self.held} "
            f"held, {counted(self.locks, 'identity lock')}, {self.remembered} remembered, "
            f"{counted(self.workers, 'worker')}"
        )


def _in_use(data: StoredData) -> Iterator[str]:
    if data.workers:
        yield (
            f"{counted(data.workers, 'worker')} called within the last five minutes: stop them (SIGTERM); a killed one "
            f"counts until then"
        )
    if data.parked:
        tasks = counted(data.parked, "task")
        yield f"{tasks} parked: `celery throttle drain` publishes them again, and lists what it leaves"
    if data.held:
        holders = counted(data.held, "holder")
        yield f"{holders} of permits or locks: let them end; `celery throttle reap` reclaims those of lost workers"


def _lost(data: StoredData) -> Iterator[str]:
    if data.locks:
        yield (
            f"{counted(data.locks, 'identity lock')} of calls that are published or run: another call with the same "
            f"arguments runs beside them"
        )
    if data.remembered:
        yield f"{counted(data.remembered, 'remembered call')}: another call with the same arguments runs again"
    if data.set_aside:
        yield f"{counted(data.set_aside, 'task')} set aside with unreadable records: their messages are lost"


def stored_data(app: Any) -> StoredData:
    """Return the data under the app's prefix, for all groups of limits of its tasks."""
    app.finalize(auto=True)  # binds the tasks, which register their groups
    settings, places = settings_of(app), _places(app)
    found = [count_keys(settings.url, keys) for keys in places]
    numbers: Counter[str] = Counter()
    workers: dict[str, int] = {}
    for reader in readers(app):
        numbers += _numbers(reader)
        for each in reader.services():  # a worker of several groups calls in each of them
            workers[each.code] = max(workers.get(each.code, 0), each.workers)
    spaces = [keys.key("") for keys in places]
    sizes = [each.size for each in found]
    ours = {each.removesuffix(":") for each in spaces}
    return StoredData(
        settings.prefix,
        tuple(spaces),
        sum(each.keys for each in found),
        None if None in sizes else sum(each or 0 for each in sizes),
        workers=sum(workers.values()),
        parked=numbers["parked"],
        held=numbers["held"] + sum(each.held for each in found),
        locks=numbers["locks"],
        remembered=numbers["remembered"],
        set_aside=numbers["set aside"],
        others=tuple(sorted(set(chain.from_iterable(each.others for each in found)) - ours)),
    )


def _places(app: Any) -> list[Keys]:
    """Return the key spaces: one for each group, and that of the primitives, which have no group."""
    prefix = settings_of(app).prefix
    return [Keys(prefix, group) for group in sorted({"", *(each.group for each in readers(app))})]


def _numbers(reader: Reader) -> Counter[str]:
    locks = Counter(each.state in _REMEMBERED for each in reader.locks(_MOST))
    return Counter(
        {
            "parked": sum(1 for _ in reader.parked_ids(None)),
            "held": len(reader.holders(None, _MOST)),
            "locks": locks[False],
            "remembered": locks[True],
            "set aside": len(reader.set_aside(_MOST)),
        }
    )


def remove_data(app: Any, *, force: bool) -> StoredData:
    """Delete the data; return the former counts, with the number of deleted keys.

    Raises:
        StoreInUse: workers are connected, tasks are parked or permits are held; not with ``force``.
        StoreUnavailable: the store does not answer, or refuses; the keys that were deleted until then stay deleted.
    """
    data = stored_data(app)
    if data.in_use and not force:
        raise StoreInUse(data.in_use)
    settings = settings_of(app)
    return replace(data, keys=sum(delete_keys(settings.url, keys) for keys in _places(app)))
