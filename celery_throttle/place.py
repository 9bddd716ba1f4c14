"""What the store has of one group of limits: how they stand, who holds and who waits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from redis.exceptions import RedisError

from celery_throttle.errors import StoreUnavailable
from celery_throttle.publish import lock_client
from celery_throttle.store import views

if TYPE_CHECKING:
    from collections.abc import Iterator

    from celery_throttle.store.scripts import Call
    from celery_throttle.store.views import Holder, LimitStatus, Parked, TaskView

__all__ = ["AT_ONCE", "MOST", "Place"]

#: Limits, or holders, that one call reads.
AT_ONCE = 100
#: Parked tasks that one call reads.
MOST = 1000


class Place:
    """Reads one group of limits; every method raises `StoreUnavailable` when the store does not answer or refuses.

    Args:
        app: the Celery app.
        group: of limits.
    """

    def __init__(self, app: Any, group: str) -> None:
        self.app, self.group = app, group
        self._client = lock_client(app, group)
        self.store = self._client.store

    def status(self, most: int) -> tuple[LimitStatus, ...]:
        """Return how the limits stand, and those keys that somebody holds, waits for or has said something of."""
        names = list(self.names())
        limits = sorted({name for name in names if "\x1f" not in name})
        keys = dict.fromkeys(name for name in names if "\x1f" in name)
        for source in ("used", "parked"):
            for page in self._pages(source) if len(limits) + len(keys) < most else ():
                keys.update(dict.fromkeys(name for name in page if "\x1f" in name))
                if len(limits) + len(keys) >= most:
                    break
        return self.stand(sorted([*limits, *keys][:most], key=lambda name: name.split("\x1f")))

    def explain(self, task_id: str) -> TaskView:
        """Return what the store knows of a task."""
        return views.task_view(self.ask(self.store.explain(task_id)))

    def is_declared(self, name: str) -> bool:
        """Whether a worker has declared this limit here."""
        (status,) = self.stand([name])
        return status.declared

    def names(self) -> Iterator[str]:
        """Return the names of all that was declared, or said something of."""
        for page in self._pages("limits"):
            yield from page

    def _pages(self, source: Any) -> Iterator[list[str]]:
        after = ""
        while True:
            following, names = self.ask(self.store.limits(source, after))
            yield [name.decode() for name in names]
            after = following.decode()
            if not after:
                return

    def stand(self, pools: list[str]) -> tuple[LimitStatus, ...]:
        """Return how these limits stand (see `Limit.pool`)."""
        found: list[LimitStatus] = []
        for first in range(0, len(pools), AT_ONCE):
            found += views.statuses(self.ask(self.store.status(pools[first : first + AT_ONCE])))
        return tuple(found)

    def holders(self, pool: str | None, most: int) -> tuple[Holder, ...]:
        """Return who holds permits, of this limit or of all."""
        found: dict[str, Holder] = {}
        past, more = 0, True
        while more and len(found) < most:
            page, more = views.holders(self.ask(self.store.holders(past, AT_ONCE)))
            past += AT_ONCE
            found.update((each.task_id, each) for each in page if pool is None or _holds(each, pool))
        return tuple(found.values())[:most]

    def parked(self, pool: str | None, most: int) -> tuple[Parked, ...]:
        """Return who waits, for this limit or at all."""
        return views.parked(self.ask(self.store.parked(pool, min(most, MOST))))

    def ask(self, call: Call) -> Any:
        """Carry out a call."""
        try:
            return self._client.ask(call)
        except (RedisError, OSError) as error:
            raise StoreUnavailable(f"The store did not answer, or refused: {error}") from error


def _holds(holder: Holder, pool: str) -> bool:
    name, split, key = pool.partition("\x1f")
    return any(need.limit == name and (not split or need.key == key) for need in holder.needs)
