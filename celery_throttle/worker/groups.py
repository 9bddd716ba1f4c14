"""The parts of a worker for one group of limits: its calls, a connection for hints, a client for leases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from celery_throttle.core.store_url import shown
from celery_throttle.errors import StoreUnavailable
from celery_throttle.store.calls import Store
from celery_throttle.store.servers.client import connection_factory, make_client
from celery_throttle.worker.held_back.saving import Saving
from celery_throttle.worker.reported.lease_reports import LeaseReports
from celery_throttle.worker.store_side.calls import Calls
from celery_throttle.worker.store_side.link import Link
from celery_throttle.worker.store_side.listener import Listener

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery_throttle.core.settings import Settings
    from celery_throttle.worker.celery_side.tasks import Tasks
    from celery_throttle.worker.held_back.held_back import HeldBack
    from celery_throttle.worker.loop import Loop
    from celery_throttle.worker.reported.paced_log import PacedLog
    from celery_throttle.worker.store_side.decisions import Decisions
    from celery_throttle.worker.timekeeper import Timekeeper

__all__ = ["Group", "calls_of"]

#: More begins than any task has.
_ANY_NUMBER = 10**9


def calls_of(
    group: str,
    gate: Decisions,
    held: HeldBack,
    *,
    settings: Settings,
    tasks: Tasks,
    worker: str,
    loop: Loop,
    timekeeper: Timekeeper,
    log: PacedLog,
) -> Calls:
    """Return the calls of a worker to one group of limits, not connected yet.

    Args:
        group: the group's name.
        gate: takes the store's decisions.
        held: holds runs until they are safe.
        settings: the settings of the app.
        tasks: the throttled tasks of the app, with their declared limits.
        worker: the worker's name in the store.
        loop: runs the connection.
        timekeeper: calls functions later, to connect again.
        log: for lines about a store that is away or refuses.
    """
    keys = settings.keys(group)
    make: Any = connection_factory(settings.url, keys)

    def named(unreachable: Callable[[Exception], None]) -> Callable[[Exception], None]:
        return lambda error: unreachable(StoreUnavailable(f"{error}; {shown(settings.url)}"))

    def connect(calls: Calls) -> tuple[Link, Listener]:
        link = Link(
            loop, timekeeper, make, settings.lease, log, calls.up, calls.broken, named(calls.unreachable), calls.tend
        )
        return link, Listener(loop, timekeeper, make, settings.lease, log, keys.wake, calls.hint, calls.look)

    most, reports = settings.max_begins or _ANY_NUMBER, LeaseReports(loop, lambda: tasks.names)
    store = Store(keys, settings.lease, settings.broker, max_begins=most)
    if (durability := settings.durability) is None:
        return Calls(group, store, worker, tasks, gate, connect, reports, log)

    def connect_too(saving: Saving) -> Link:
        nothing = lambda *args: None  # noqa: E731 - the link for calls reports it
        return Link(loop, timekeeper, make, settings.lease, log, nothing, saving.broken, nothing, saving.tick)

    saving = Saving(group, store, durability, gate, held, connect_too, loop)
    return Calls(group, store, worker, tasks, gate, connect, reports, log, saving)


class Group:
    """A group of limits, which share one hash slot in Redis; in a cluster each group may be on another node.

    Args:
        calls: the calls of this worker to the group.
        settings: the settings of the app.

    Attributes:
        calls: as given.
        client: a client for other threads than the loop's.
    """

    def __init__(self, calls: Calls, settings: Settings) -> None:
        self.calls = calls
        self.client = make_client(settings.url, settings.keys(calls.group))

    @property
    def busy(self) -> bool:
        """Whether a call to the store is under way, or waits to be sent."""
        return self.calls.link.up and not self.calls.idle

    def close(self) -> None:
        """End all connections."""
        self.calls.lease_reports.finish()
        self.calls.close()
        self.client.close()
