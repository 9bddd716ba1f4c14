"""Look into limits and steer them at run time, for all workers at once."""

from __future__ import annotations

import logging
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from celery_throttle.clients import signed
from celery_throttle.control.known_limits import KnownLimits
from celery_throttle.control.limit_control import MOST, LimitControl, count
from celery_throttle.control.limit_history import with_last_hour
from celery_throttle.control.names import queue_names, task_id_of
from celery_throttle.control.reader import Reader
from celery_throttle.control.repair import mend
from celery_throttle.control.several import changes_of, holders_of, parked_of
from celery_throttle.control.until import LONGEST
from celery_throttle.core.wording import one_line, signature
from celery_throttle.core.wrong_calls import tells
from celery_throttle.errors import ConfigurationError
from celery_throttle.settings import checked_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from celery import Task
    from celery.result import AsyncResult

    from celery_throttle.control.reader import Reclaimed
    from celery_throttle.control.removal import StoredData
    from celery_throttle.control.report import Report
    from celery_throttle.control.runnable import Runnable
    from celery_throttle.core.limits import Limit
    from celery_throttle.store.audit import Change
    from celery_throttle.store.draining import Drained
    from celery_throttle.store.explain import Explanation
    from celery_throttle.store.holders import Holder
    from celery_throttle.store.identity_locks import LockStatus
    from celery_throttle.store.limit_status import LimitStatus
    from celery_throttle.store.parked_tasks import Parked
    from celery_throttle.store.unreadable import SetAside, Wrong

__all__ = ["ThrottleControl", "as_shown"]

T = TypeVar("T")

logger = logging.getLogger(__name__)

_OF_ALL = "it is of all limits and queues, throttle.drain(dry_run=True) counts"


class ThrottleControl:
    """The limits of an app's store: how they stand, who holds and who waits, and what is said of them at run time::

        throttle = ThrottleControl(app)
        throttle.limit("api").override(2, until=timedelta(hours=1), why="their incident 42")
        throttle.limit("tenant", key="acme").pause(why="asked us to stop")
        print(throttle.explain(task_id))

    What is said is kept in the store, with who said it, when and why, for all workers, also those that start later.
    What only reads writes nothing, and reads no more than ``most`` says.

    Args:
        app: the Celery app; its tasks need not be imported, the store knows the limits of its workers.

    Raises:
        ConfigurationError: no Redis is known, or a setting cannot work.
        StoreUnavailable: from every method, when the store does not answer or refuses; ``__cause__`` has the client's
            error.

    Warning:
        What is read was so a moment ago. ``disable()`` lifts a limit that something may rely on.
    """

    @tells()
    def __init__(self, app: Any) -> None:
        self._app = checked_app("ThrottleControl", app)
        self._known = KnownLimits(self._app)

    @tells(name="write throttle.limit('api')", task="write throttle.limit(task)")
    def limit(self, limit: str | Limit | Task[..., Any], *, key: object = None) -> LimitControl:
        """Return what steers a limit, or one key of it.

        Args:
            limit: its name, the `Limit` itself, or a task that has just this one, also by its name.
            key: the value of its key, as tasks have it; None: the limit itself, and all its keys.

        Raises:
            ConfigurationError: no worker and no task of this app has declared such a limit, or it has no keys; the task
                has none, or several.
        """
        return self._known.limit(limit, key)

    @tells(name="write throttle.limits(task)", limit="write throttle.limits(task)")
    def limits(self, task: str | Limit | Task[..., Any], *, key: object = None) -> tuple[LimitControl, ...]:
        """Return what steers each limit of a task; what `limit` returns if a limit is given.

        Args:
            task: the task or its name, or what `limit` takes.
            key: of those of its limits that have keys.

        Raises:
            ConfigurationError: as `limit`, but for a task with several limits.
        """
        return self._known.limits(task, key)

    @tells()
    def status(self, *, most: int = MOST, last_hour: bool = False) -> tuple[LimitStatus, ...]:
        """Return how every limit of the store stands, whoever declared it, by name.

        Of limits with keys, those keys that somebody holds or waits for, or has said something of.

        Args:
            most: how many at most, limits before keys.
            last_hour: also what started on each limit in the last hour, and how long that had waited.
        """
        read = [(place, place.status(count("most", most), most=most)) for place in self._known.readers()]
        found = [each for place, rows in read for each in (with_last_hour(place, rows) if last_hour else rows)]
        limits_first = sorted(found, key=lambda each: (each.key is not None, each.name, each.key or ""))
        return tuple(sorted(limits_first[:most], key=lambda each: (each.name, each.key or "")))

    @tells(key="write throttle.limit('tenant', key='acme').holders()")
    def holders(self, limit: str | Limit | Task[..., Any] | None = None, *, most: int = MOST) -> tuple[Holder, ...]:
        """Return who holds permits (of this limit), or an identity lock; those first whose lease ends first.

        Args:
            limit: None for all.
            most: how many at most.
        """
        if limit is not None:
            return holders_of(self.limits(limit), most)
        return tuple(self._each(lambda place: place.holders(None, count("most", most))))[:most]

    @tells(key="write throttle.limit('tenant', key='acme').parked()")
    def parked(self, limit: str | Limit | Task[..., Any] | None = None, *, most: int = 100) -> tuple[Parked, ...]:
        """Return who waits (for this limit, with all its keys), line by line, first come first.

        Args:
            limit: None for all, also those that wait for their identity lock.
            most: how many at most, up to 1000.
        """
        if limit is not None:
            return parked_of(self.limits(limit), most)
        return tuple(self._each(lambda place: place.parked(None, count("most", most))))[:most]

    @tells()
    def audit(self, limit: str | Limit | Task[..., Any] | None = None, *, most: int = 200) -> tuple[Change, ...]:
        """Return who changed what at run time (of this limit, with all its keys), when and why, newest first.

        Each is written together with the change itself. The newest 200 of each group of limits are kept.

        Args:
            limit: None for all, also what was no limit's.
            most: how many at most.
        """
        if limit is not None:
            return changes_of(self.limits(limit), most)
        found = list(self._each(lambda place: place.audit(None, count("most", most))))
        return tuple(sorted(found, key=lambda each: each.at, reverse=True))[:most]

    @tells()
    def explain(self, task_id: str | AsyncResult[Any]) -> Explanation:
        """Return what a task is doing, and why it waits if it does.

        Of a task that is in its queue still, or waits for its ETA, nothing more is known here than that.

        Args:
            task_id: of the call, or the `AsyncResult` that ``delay`` returned.

        Raises:
            ConfigurationError: it is neither.
        """
        from celery_throttle.control.explaining import explain  # noqa: PLC0415 - most commands do without

        return explain(self._known.readers(), task_id_of("explain", task_id))

    @tells()
    def report(self, *, patience: float | timedelta = 600, command: str = "celery -A proj") -> Report:
        """Return one verdict: what is wrong, why, and what to do next; the same for the same state.

        Args:
            patience: seconds, or a timedelta; who waits for longer, for a reason that somebody can end, is an alarm.
            command: how your commands begin, for what to type.

        Raises:
            ConfigurationError: patience is no number of seconds.
        """
        seconds: Any = patience.total_seconds() if isinstance(patience, timedelta) else patience
        if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < LONGEST:
            raise ConfigurationError(f"patience must be seconds, 0 or more, got {patience!r}: write patience=600")
        from celery_throttle.control.findings import Commands  # noqa: PLC0415 - most commands do without
        from celery_throttle.control.report import report  # noqa: PLC0415 - most commands do without

        return report(self._app, Commands(command), timedelta(seconds=seconds))

    @tells()
    def metrics(self, *, queues: Iterable[str] = ()) -> str:
        """Return how the limits stand as text for Prometheus, in its own format and OpenMetrics' at once.

        Keys are summed: the number of series grows with the limits and queues alone.

        Args:
            queues: those too, beside what the app's configuration names and tasks that run or could start are of.

        Raises:
            ConfigurationError: one of them is no text.
        """
        from celery_throttle.control.exposition import exposition  # noqa: PLC0415 - most commands do without
        from celery_throttle.control.metrics import measured  # noqa: PLC0415 - most commands do without

        return exposition(measured(self._app, queue_names("metrics", queues)))

    def runnable(self, *queues: str) -> tuple[Runnable, ...]:
        """Return how many tasks of each queue could run now, were there workers for all: what to scale workers by.

        The broker is asked, too; where it does not say how many messages wait, ``runnable`` is None.

        Args:
            queues: their names; without any, those of the app's configuration and of tasks that run or could start.

        Raises:
            ConfigurationError: one of them is no text; or there is no such queue, as far as configuration, routes,
                tasks, broker, workers and parked tasks tell.
        """
        from celery_throttle.control.runnable import runnable  # noqa: PLC0415 - most commands do without

        return runnable(self._app, queue_names("runnable", queues))

    @tells("write throttle.drop({value}) for another task")
    def drop(self, task_id: str | AsyncResult[Any], *, by: str | None = None, why: str = "") -> bool:
        """Let a parked task not run; False if it is not parked. All of a limit: ``limit(...).drop()``.

        It ends as revoked, as soon as a worker of its queue has a free slot to say so; its identity lock is free at
        once.

        Args:
            task_id: of the call, or the `AsyncResult` that ``delay`` returned.
            by: who does it, None: ``user@host``.
            why: for whoever looks later, and for whoever asks for the result.

        Raises:
            ConfigurationError: it is neither.
        """
        task, (by, why) = task_id_of("drop", task_id), signed(by, why)
        dropped = any(place.drop(None, [task], by, why) for place in self._known.readers())
        done = "dropped" if dropped else "not dropped, since it is not parked,"
        logger.info("Task %s: %s by %s", one_line(task), done, signature(by, why))
        return dropped

    @tells(_OF_ALL, **dict.fromkeys(("limit", "queue", "queues", "key", "task", "task_id"), _OF_ALL))
    def drain(self, *, by: str | None = None, why: str = "", dry_run: bool = False) -> tuple[Drained, ...]:
        """Publish all parked tasks again, oldest first, each to the queue that it came from: to do without throttling.

        Stop the workers before, or start them with ``throttle_enabled = False``: others park again what they get. Each
        message is published before it is taken out of the store. Duplicates that wait for the outcome of their first,
        and those that have only to be told that they do not run, stay parked; so do tasks of another broker, which the
        app of that broker drains.

        Args:
            by: who does it, None: ``user@host``.
            why: for whoever looks later.
            dry_run: only count.

        Returns:
            What became of the tasks of each queue.

        Raises:
            kombu.exceptions.OperationalError: the broker cannot be reached; what was not published is parked as before.
        """
        from celery_throttle.control.drain import drain  # noqa: PLC0415 - most commands do without

        return drain(self._app, self._known.readers(), *signed(by, why), dry_run=dry_run)

    @tells("it is of all limits: throttle.remove_data(dry_run=True) counts")
    def remove_data(
        self, *, by: str | None = None, why: str = "", dry_run: bool = False, force: bool = False
    ) -> StoredData:
        """Delete all keys of the app's prefix from the store, once throttling is gone; `drain` comes before.

        Limits, overrides, audit, counts, identity locks and remembered calls go; of the groups of limits that the
        app's tasks name, and with what ``celery_throttle.primitives`` have under this prefix in this store.

        Args:
            by: who does it, for the log; None: ``user@host``.
            why: for the log.
            dry_run: only count.
            force: also while workers are connected, tasks are parked or permits are held: parked tasks are lost then,
                and what runs is no longer counted.

        Returns:
            What was there.

        Raises:
            StoreInUse: workers called within the last five minutes, tasks are parked or permits are held.
        """
        from celery_throttle.control.removal import remove_data, stored_data  # noqa: PLC0415 - most commands do without

        by, why = signed(by, why)
        if dry_run:
            return stored_data(self._app)
        data = remove_data(self._app, force=force)
        logger.warning("%d keys of prefix %r deleted by %s", data.keys, data.prefix, signature(by, why))
        return data

    @tells()
    def locks(self, *, most: int = MOST) -> tuple[LockStatus, ...]:
        """Return the identity locks that somebody has, those first that were taken first.

        Args:
            most: how many at most; where there are more, which of them are shown is by chance.
        """
        found = list(self._each(lambda place: place.locks(count("most", most))))
        return tuple(sorted(found[:most], key=lambda each: each.since))

    @tells()
    def unlock(self, identity: str, *, task_name: str = "", by: str | None = None, why: str = "") -> bool:
        """Take an identity lock away from whoever has it; False if nobody has. Of a call: ``task.unlock(...)``.

        A task that runs goes on, beside the next one: its fencing token is the smaller.

        Args:
            identity: as `locks` has it.
            task_name: for whoever looks later.
            by: who does it, None: ``user@host``.
            why: for whoever looks later.
        """
        by, why = signed(by, why)
        return any(place.unlock(identity, task_name, by, why) for place in self._known.readers())

    def set_aside(self, *, most: int = 100) -> tuple[SetAside, ...]:
        """Return the tasks whose records in the store nobody can read: corrupt, foreign, or of another release.

        Their lines have gone on without them. The messages are kept for a week.

        Args:
            most: how many at most, up to 1000.
        """
        found = self._each(lambda place: place.set_aside(count("most", most)))
        return tuple(found)[:most]

    def repair(self, *, dry_run: bool = False) -> tuple[Wrong, ...]:
        """Drop or set aside what cannot be read in the store, and put right what does not agree with the records.

        Workers do so, too, as soon as they come to it, and beat now and then for some of what there is; this looks at
        everything. What was there is in `set_aside()` for a week.

        Args:
            dry_run: only say what there is.

        Returns:
            What was found.
        """
        return tuple(self._each(lambda place: mend(place, dry_run=dry_run)))

    def reap(self) -> tuple[Reclaimed, ...]:
        """Clear the holders whose lease has ended, as beat and workers do by themselves, and wake who can go on.

        Returns those that were cleared. The cost grows with them, not with what there is.
        """
        return tuple(self._each(Reader.reap))

    def _each(self, read: Callable[[Reader], Iterable[T]]) -> Iterator[T]:
        """Yield what is read of each group of limits."""
        return chain.from_iterable(map(read, self._known.readers()))


def as_shown(throttle: ThrottleControl, name: str, key: object) -> tuple[str, object]:
    """Return name and key of a limit that may be written as it is shown: ``tenant[acme]``.

    Raises:
        ConfigurationError: there is no such limit.
    """
    try:
        throttle.limit(name)
    except ConfigurationError:
        limit, bracket, rest = name.partition("[")
        if key is not None or not bracket or not rest.endswith("]"):
            raise
        return as_shown(throttle, limit, rest[:-1])
    return name, key
