"""Read the limits and change them at run time, for all workers at once."""

from __future__ import annotations

import logging
from datetime import timedelta
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

from celery_throttle.clients import signed
from celery_throttle.control.known_limits import KnownLimits, changes_of, holders_of, parked_of, queue_names, task_id_of
from celery_throttle.control.limit_control import MOST, LimitControl
from celery_throttle.control.reader import Reader
from celery_throttle.core.checks import seconds, whole
from celery_throttle.core.wording import one_line, signature
from celery_throttle.core.wrong_calls import with_fixes
from celery_throttle.errors import ConfigurationError
from celery_throttle.settings import checked_app

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from celery import Task
    from celery.result import AsyncResult

    from celery_throttle.control.checks import Report
    from celery_throttle.control.reader import Reclaimed
    from celery_throttle.control.removal import StoredData
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
    """The limits of an app's store: read their status, holders and parked tasks, and change them at run time::

        throttle = ThrottleControl(app)
        throttle.limit("api").override(2, until=timedelta(hours=1), why="their incident 42")
        throttle.limit("tenant", key="acme").pause(why="asked us to stop")
        print(throttle.explain(task_id))

    The store keeps each change with its operator, time and reason: ``by`` is the name of the operator, None for
    ``user@host``, and ``why`` is the reason, for later readers. A change holds for all workers, also for those that
    start later. Methods that read write nothing, and read at most ``most`` rows.

    Args:
        app: the Celery app; its tasks need not be imported, because the store has the limits of its workers.

    Raises:
        ConfigurationError: no Redis is configured, or a setting cannot work.
        StoreUnavailable: from each method, if the store does not answer or refuses; ``__cause__`` has the client's
            error.

    Warning:
        The returned values may already have changed. ``disable()`` lifts a limit that another system may rely on.
    """

    @with_fixes()
    def __init__(self, app: Any) -> None:
        self._app = checked_app("ThrottleControl", app)
        self._known = KnownLimits(self._app)

    @with_fixes(name="write throttle.limit('api')", task="write throttle.limit(task)")
    def limit(self, limit: str | Limit | Task[..., Any], *, key: object = None) -> LimitControl:
        """Return the control of a limit, or of one key of it.

        Args:
            limit: the name of the limit, the `Limit` itself, or a task with exactly one limit (or the task's name).
            key: the value of the limit's key, as in the calls of tasks; None: the limit itself, with all its keys.

        Raises:
            ConfigurationError: no worker and no task of this app has declared the limit; the limit has no keys; the
                task has no limit, or several.
        """
        return self._known.limit(limit, key)

    @with_fixes(name="write throttle.limits(task)", limit="write throttle.limits(task)")
    def limits(self, task: str | Limit | Task[..., Any], *, key: object = None) -> tuple[LimitControl, ...]:
        """Return the controls of all limits of a task; for a limit, its own control alone.

        Args:
            task: the task or its name, or a limit as for `limit`.
            key: the value of the key, for those of the limits that have keys.

        Raises:
            ConfigurationError: as `limit`, but for a task with several limits.
        """
        return self._known.limits(task, key)

    @with_fixes()
    def status(self, *, most: int = MOST, last_hour: bool = False) -> tuple[LimitStatus, ...]:
        """Return the status of all limits of the store, by name, also of limits that other apps declare.

        Limits with keys are followed by their keys that have holders, parked tasks or changes at run time.

        Args:
            most: the most rows, limits before keys.
            last_hour: with the starts of the last hour of each limit, and their waits.
        """
        read = [(reader, reader.status(whole("most", most, usual=100), most=most)) for reader in self._known.readers()]
        found = [each for reader, rows in read for each in (reader.with_last_hour(rows) if last_hour else rows)]
        limits_first = sorted(found, key=lambda each: (each.key is not None, each.name, each.key or ""))
        return tuple(sorted(limits_first[:most], key=lambda each: (each.name, each.key or "")))

    @with_fixes(key="write throttle.limit('tenant', key='acme').holders()")
    def holders(self, limit: str | Limit | Task[..., Any] | None = None, *, most: int = MOST) -> tuple[Holder, ...]:
        """Return the holders of permits (of this limit) or of an identity lock; the first lease to end first.

        Args:
            limit: the limit or task, None for all holders.
        """
        if limit is not None:
            return holders_of(self.limits(limit), most)
        return tuple(self._each(lambda reader: reader.holders(None, whole("most", most, usual=100))))[:most]

    @with_fixes(key="write throttle.limit('tenant', key='acme').parked()")
    def parked(self, limit: str | Limit | Task[..., Any] | None = None, *, most: int = 100) -> tuple[Parked, ...]:
        """Return the parked tasks (of this limit, with all its keys), line by line, the oldest first.

        Args:
            limit: the limit or task; None for all parked tasks, also those that wait for their identity lock.
            most: the most rows, up to 1000.
        """
        if limit is not None:
            return parked_of(self.limits(limit), most)
        return tuple(self._each(lambda reader: reader.parked(None, whole("most", most, usual=100))))[:most]

    @with_fixes()
    def audit(self, limit: str | Limit | Task[..., Any] | None = None, *, most: int = 200) -> tuple[Change, ...]:
        """Return the changes at run time (of this limit, with all its keys), newest first.

        Each record is written together with its change. The newest 200 of each group of limits are kept.

        Args:
            limit: the limit or task; None for all changes, also those that are about no limit.
        """
        if limit is not None:
            return changes_of(self.limits(limit), most)
        found = list(self._each(lambda reader: reader.audit(None, whole("most", most, usual=100))))
        return tuple(sorted(found, key=lambda each: each.at, reverse=True))[:most]

    @with_fixes()
    def explain(self, task_id: str | AsyncResult[Any]) -> Explanation:
        """Return the state of a task, and the reason why it waits.

        A task that is still in its queue, or waits for its ETA, has the state "unknown".

        Args:
            task_id: the id of the task, or the `AsyncResult` of ``delay``.

        Raises:
            ConfigurationError: the value is neither.
        """
        from celery_throttle.control.pace import explain  # noqa: PLC0415 - most commands do without

        return explain(self._known.readers(), task_id_of("explain", task_id))

    @with_fixes()
    def report(self, *, patience: float | timedelta = 600, command: str = "celery -A proj") -> Report:
        """Return one verdict: the problems, their reasons and the next steps; the same for the same state.

        Args:
            patience: seconds, or a timedelta; a longer wait, for a reason that an operator can end, is an alarm.
            command: the beginning of the commands in the verdict.

        Raises:
            ConfigurationError: patience is no number of seconds.
        """
        patience = seconds("patience", patience, usual=600)
        from celery_throttle.control.checks import report  # noqa: PLC0415 - most commands do without
        from celery_throttle.control.findings import Commands  # noqa: PLC0415 - most commands do without

        return report(self._app, Commands(command), timedelta(seconds=patience))

    @with_fixes()
    def metrics(self, *, queues: Iterable[str] = ()) -> str:
        """Return the metrics of the limits as text, in the formats of Prometheus and OpenMetrics at once.

        Keys are summed: the number of series grows with the limits and queues alone.

        Args:
            queues: further queues, beside those of the app's configuration and of tasks that run or could start.

        Raises:
            ConfigurationError: the name of a queue is no text.
        """
        from celery_throttle.control.metrics import exposition, measured  # noqa: PLC0415 - most commands do without

        return exposition(measured(self._app, queue_names("metrics", queues)))

    def runnable(self, *queues: str) -> tuple[Runnable, ...]:
        """Return the number of tasks of each queue that could run now with enough workers, to scale workers by.

        ``runnable`` is None if the broker does not report its waiting messages.

        Args:
            queues: names of queues; without any, those of the app's configuration and of tasks that run or could start.

        Raises:
            ConfigurationError: a name is no text, or there is no such queue in the configuration, the routes, the
                tasks, the broker, the workers and the store.
        """
        from celery_throttle.control.runnable import runnable  # noqa: PLC0415 - most commands do without

        return runnable(self._app, queue_names("runnable", queues))

    @with_fixes("write throttle.drop({value}) for another task")
    def drop(self, task_id: str | AsyncResult[Any], *, by: str | None = None, why: str = "") -> bool:
        """Drop a parked task, so that it does not run; False if it is not parked. See also ``limit(...).drop()``.

        The task ends as revoked as soon as a worker of its queue has a free slot to report that. Callers that wait for
        its result get ``why``. Its identity lock is free at once.

        Args:
            task_id: the id of the task, or the `AsyncResult` of ``delay``.

        Raises:
            ConfigurationError: the value is neither.
        """
        task, (by, why) = task_id_of("drop", task_id), signed(by, why)
        dropped = any(reader.drop(None, [task], by, why) for reader in self._known.readers())
        done = "dropped" if dropped else "not dropped, since it is not parked,"
        logger.info("Task %s: %s by %s", one_line(task), done, signature(by, why))
        return dropped

    @with_fixes(_OF_ALL, **dict.fromkeys(("limit", "queue", "queues", "key", "task", "task_id"), _OF_ALL))
    def drain(self, *, by: str | None = None, why: str = "", dry_run: bool = False) -> tuple[Drained, ...]:
        """Publish all parked tasks again, oldest first, each to the queue that the task came from.

        A drain is a step of the removal of the library. Stop the workers before, or start them with
        ``throttle_enabled = False``; other workers park the tasks again. Each message is published before it is removed
        from the store. Some tasks stay parked: duplicates that wait for the outcome of their first, tasks that end
        without running, and tasks of another broker, which the app of that broker drains.

        Args:
            dry_run: only count.

        Returns:
            The outcome for each queue.

        Raises:
            kombu.exceptions.OperationalError: the broker cannot be reached; tasks that were not published stay parked.
        """
        from celery_throttle.control.removal import drain  # noqa: PLC0415 - most commands do without

        return drain(self._app, self._known.readers(), *signed(by, why), dry_run=dry_run)

    @with_fixes("it is of all limits: throttle.remove_data(dry_run=True) counts")
    def remove_data(
        self, *, by: str | None = None, why: str = "", dry_run: bool = False, force: bool = False
    ) -> StoredData:
        """Delete all keys of the app's prefix from the store, after throttling was removed; call `drain` before.

        This deletes limits, overrides, audit, counts, identity locks and remembered calls, for all groups of limits of
        the app's tasks. It also deletes the data of ``celery_throttle.primitives`` under this prefix in this store.
        Only the log keeps ``by`` and ``why``.

        Args:
            dry_run: only count.
            force: also while workers are connected, tasks are parked or permits are held: parked tasks are lost then,
                and running tasks are no longer counted.

        Returns:
            The former counts.

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

    @with_fixes()
    def locks(self, *, most: int = MOST) -> tuple[LockStatus, ...]:
        """Return the identity locks that are held, the oldest first.

        Args:
            most: the most rows; if there are more locks, a random part of them is returned.
        """
        found = list(self._each(lambda reader: reader.locks(whole("most", most, usual=100))))
        return tuple(sorted(found[:most], key=lambda each: each.since))

    @with_fixes()
    def unlock(self, identity: str, *, task_name: str = "", by: str | None = None, why: str = "") -> bool:
        """Take an identity lock away from its task; False if the lock is free. For a call: ``task.unlock(...)``.

        A running task goes on, beside the next one; the running task has the smaller fencing token.

        Args:
            identity: the identity, as in the rows of `locks`.
            task_name: the name of the task, for later readers.
        """
        by, why = signed(by, why)
        return any(reader.unlock(identity, task_name, by, why) for reader in self._known.readers())

    def set_aside(self, *, most: int = 100) -> tuple[SetAside, ...]:
        """Return the tasks with unreadable records in the store: corrupt, foreign, or of another release.

        Their lines have gone on without them. The messages are kept for a week.

        Args:
            most: the most rows, up to 1000.
        """
        found = self._each(lambda reader: reader.set_aside(whole("most", most, usual=100)))
        return tuple(found)[:most]

    def repair(self, *, dry_run: bool = False) -> tuple[Wrong, ...]:
        """Drop or set aside unreadable fields of the store, and correct fields that contradict the records.

        Workers repair fields too when they meet them, and beat repairs some now and then; this method checks all
        fields. The former values are in `set_aside()` for a week.

        Args:
            dry_run: only return the defects.

        Returns:
            The defects.
        """
        return tuple(self._each(lambda reader: reader.mend(dry_run=dry_run)))

    def reap(self) -> tuple[Reclaimed, ...]:
        """Clear the holders whose leases have ended, as beat and workers do, and wake the tasks that can start then.

        Return the cleared holders. The cost grows with their number, not with the size of the store.
        """
        return tuple(self._each(Reader.reap))

    def _each(self, read: Callable[[Reader], Iterable[T]]) -> Iterator[T]:
        """Yield the rows of all groups of limits."""
        return chain.from_iterable(map(read, self._known.readers()))


def as_shown(throttle: ThrottleControl, name: str, key: object) -> tuple[str, object]:
    """Return the name and key of a limit, also from the form of the output: ``tenant[acme]``.

    `ConfigurationError` if there is no such limit.
    """
    try:
        throttle.limit(name)
    except ConfigurationError:
        limit, bracket, rest = name.partition("[")
        if key is not None or not bracket or not rest.endswith("]"):
            raise
        return as_shown(throttle, limit, rest[:-1])
    return name, key
