"""Delete what the library has stored: the last step of doing without it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from celery_throttle.control.diagnosis import readers
from celery_throttle.core.keys import Keys
from celery_throttle.core.wording import counted
from celery_throttle.errors import StoreInUse
from celery_throttle.settings import settings_of
from celery_throttle.store.keyspace import count_keys, delete_keys

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.control.reader import Reader

__all__ = ["StoredData", "remove_data", "stored_data"]

#: Holders, locks and unreadable records that are counted of each group.
_MOST = 20_000
_REMEMBERED = ("done", "failed")


@dataclass(frozen=True)
class StoredData:
    """What the library has stored under a prefix.

    Attributes:
        prefix: of the keys.
        spaces: what the keys begin with: one for each group of limits.
        keys: how many there are, or have been deleted.
        size: their bytes; None if the server does not tell.
        workers: that called within the last five minutes.
        parked: tasks that are parked.
        held: tasks and processes that hold permits, tasks that run under an identity lock; also locks and semaphores
            of ``celery_throttle.primitives``.
        locks: identity locks of calls that are published, or run.
        remembered: calls that are remembered, so that they do not run again.
        set_aside: tasks whose records in the store nobody can read, with their messages.
        others: what other keys begin with that begin alike; they stay.
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
        """Why it should stay, and what to do about it."""
        return tuple(_in_use(self))

    @property
    def lost(self) -> tuple[str, ...]:
        """What its end means for tasks."""
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
    """Return what is stored under the app's prefix, of all groups of limits that its tasks name.

    Raises:
        ConfigurationError: a setting cannot work.
        StoreUnavailable: the store does not answer, or refuses.
    """
    app.finalize(auto=True)  # its tasks are bound, and have said which groups there are
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
    """Return where keys may be: those of each group, and those of the primitives, which have none."""
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
    """Delete it; return what was there, with the number of deleted keys.

    Raises:
        StoreInUse: workers are connected, tasks are parked or permits are held; not with ``force``.
        ConfigurationError: as `stored_data`.
        StoreUnavailable: as `stored_data`; what is deleted by then stays so.
    """
    data = stored_data(app)
    if data.in_use and not force:
        raise StoreInUse(data.in_use)
    settings = settings_of(app)
    return replace(data, keys=sum(delete_keys(settings.url, keys) for keys in _places(app)))
