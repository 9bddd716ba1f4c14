"""The removal of the library: publish the parked tasks to the queues that they came from, and delete all data."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from kombu import Producer

from celery_throttle.control.queues import reached
from celery_throttle.control.reader import AT_ONCE, readers
from celery_throttle.core.keys import Keys
from celery_throttle.core.wording import counted, signature
from celery_throttle.errors import StoreInUse, StoreUnavailable
from celery_throttle.settings import settings_of
from celery_throttle.store.draining import Drained, read_lent
from celery_throttle.store.keyspace import count_keys, delete_keys
from celery_throttle.store.parcel import unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_throttle.control.reader import Reader
    from celery_throttle.store.draining import Lent
    from celery_throttle.store.parked_tasks import ParkedId

__all__ = ["StoredData", "borrow", "drain", "remove_data", "stored_data"]

logger = logging.getLogger(__name__)

#: The most holders, locks and unreadable records that are counted for each group.
_MOST = 20_000
_REMEMBERED = ("done", "failed")
#: The most bytes of messages that one call reads.
_BYTES = 4_000_000
# Properties of one delivery, which the next one gets by itself; and properties that `publish` takes by name.
_OF_A_DELIVERY = ("body_encoding", "delivery_info", "delivery_tag")
_BY_NAME = ("application_headers", "content_encoding", "content_type", "expiration", "headers")


def drain(app: Any, readers: Iterable[Reader], by: str, why: str, *, dry_run: bool) -> tuple[Drained, ...]:
    """Publish all parked tasks of the app's own broker, or count them; see `ThrottleControl.drain`."""
    drained: Counter[str] = Counter()
    left: Counter[str] = Counter()
    elsewhere: Counter[str] = Counter()
    for reader in readers:
        parked = sorted(reader.parked_ids(None))  # by ticket
        elsewhere.update(each.queue.name for each in parked if not reader.is_ours(each.queue.broker))
        found = [each for each in parked if reader.is_ours(each.queue.broker)]
        runs = [each for each in found if each.what == "runs"]
        if dry_run or not runs:
            drained.update(each.queue.name for each in runs)
            left.update(each.queue.name for each in found if each.what != "runs")
            continue
        published = _drain(app, reader, runs, by, why)
        logger.info("%d parked tasks published again by %s", sum(published.values()), signature(by, why))
        drained += published
        now = (each.queue for each in reader.parked_ids(None))
        left.update(queue.name for queue in now if reader.is_ours(queue.broker))
    queues = sorted({*drained, *left, *elsewhere})
    return tuple(Drained(queue, drained[queue], left[queue], elsewhere[queue]) for queue in queues)


def _drain(app: Any, reader: Reader, tasks: list[ParkedId], by: str, why: str) -> Counter[str]:
    """Publish the messages of these parked tasks, in this order, and then remove them from the store.

    If the process is killed in between, up to a page of tasks are in their queues, and also parked again once the lease
    has ended.

    Returns:
        The number of published messages of each queue.

    Raises:
        StoreUnavailable: the store did not answer, or refused.
        kombu.exceptions.OperationalError: the broker did not answer, or refused; the other tasks stay parked.
    """
    ids, change = [each.task for each in tasks], ""
    drained: Counter[str] = Counter()
    with _queues(app) as queues:
        while ids:
            nonce = f"drain:{uuid.uuid4().hex[:8]}"
            looked_at, lent = borrow(reader, nonce, ids)
            del ids[:looked_at]
            published: dict[str, str] = {}
            try:
                for each in lent:
                    if queues.put(each):
                        published[each.task] = each.queue.name
            except BaseException:
                with suppress(StoreUnavailable):  # without this report, the store takes them back after the lease
                    _report(reader, nonce, lent, published, by, why, change)
                raise
            change = _report(reader, nonce, lent, published, by, why, change)
            drained.update(published.values())
    return drained


def borrow(reader: Reader, nonce: str, tasks: list[str]) -> tuple[int, list[Lent]]:
    """Borrow the messages of the first of these parked tasks; return the number of tasks seen, and the messages."""
    return reader.read(read_lent, reader.store.unpark(nonce, _BYTES, tasks[:AT_ONCE]))


def _report(
    reader: Reader, nonce: str, lent: list[Lent], published: dict[str, str], by: str, why: str, change: str
) -> str:
    others = [each.task for each in lent if each.task not in published]
    number, _ = reader.ask(reader.store.unparked(nonce, by, why, change, list(published), others))
    text: str = number.decode()
    return text


class _Queues:
    """The broker's queues; ``connection`` is open."""

    def __init__(self, app: Any, connection: Any) -> None:
        self._app, self._connection = app, connection
        # The app's producer has an exchange; the default exchange reaches a queue by its name.
        self._producer = Producer(connection.channel(), auto_declare=False)
        self._known: set[str] = set()

    def put(self, lent: Lent) -> bool:
        """Publish a message unchanged to its queue; False if the message is unreadable."""
        try:
            message: Any = unpack(lent.message, None, redelivered=False)
        except (ValueError, LookupError, TypeError, AttributeError):
            logger.exception("The message of task %s is not readable, it stays parked", lent.task)
            return False
        self._make_sure_of(lent.queue.name)
        headers, properties = dict(message.headers), dict(message.properties)
        expiration = properties.get("expiration")
        self._producer.publish(
            message.body,
            routing_key=lent.queue.name,
            content_type=message.content_type,
            content_encoding=message.content_encoding,
            compression=headers.pop("compression", None),
            headers=headers,
            expiration=float(expiration) / 1000 if expiration else None,
            **{name: each for name, each in properties.items() if name not in (*_OF_A_DELIVERY, *_BY_NAME)},
        )
        return True

    def _make_sure_of(self, queue: str) -> None:
        """Declare the queue if it is missing, because an AMQP broker discards messages for missing queues."""
        if queue in self._known or not _is_amqp(self._connection):
            return
        try:
            with self._connection.channel() as channel:
                channel.queue_declare(queue, passive=True)
        except self._connection.channel_errors:  # the error has closed the channel
            with self._connection.channel() as channel:
                self._app.amqp.queues[queue](channel).declare()
        self._known.add(queue)


@contextmanager
def _queues(app: Any) -> Iterator[_Queues]:
    # The store may forget a message only after the broker has confirmed it.
    options = {"confirm_publish": True} if _is_amqp(app.connection_for_write()) else {}
    with reached(app.connection_for_write, app.conf.broker_connection_timeout, **options) as connection:
        yield _Queues(app, connection)


def _is_amqp(connection: Any) -> bool:
    return bool(connection.transport.driver_type == "amqp")


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
        called = "called within the last five minutes: stop them (SIGTERM); a killed one counts until then"
        drains = "`celery throttle drain` publishes them again, and lists what it leaves"
        ends = "let them end; `celery throttle reap` reclaims those of lost workers"
        return _of_some(
            (self.workers, "worker", f" {called}"),
            (self.parked, "task", f" parked: {drains}"),
            (self.held, "holder", f" of permits or locks: {ends}"),
        )

    @property
    def lost(self) -> tuple[str, ...]:
        """The consequences of deleting for tasks."""
        beside = "of calls that are published or run: another call with the same arguments runs beside them"
        return _of_some(
            (self.locks, "identity lock", f" {beside}"),
            (self.remembered, "remembered call", ": another call with the same arguments runs again"),
            (self.set_aside, "task", " set aside with unreadable records: their messages are lost"),
        )

    def __str__(self) -> str:
        size = "" if self.size is None else f", {self.size} bytes"
        return (
            f"{counted(self.keys, 'key')} of {' and '.join(self.spaces)}{size}: {self.parked} parked, {self.held} "
            f"held, {counted(self.locks, 'identity lock')}, {self.remembered} remembered, "
            f"{counted(self.workers, 'worker')}"
        )


def _of_some(*facts: tuple[int, str, str]) -> tuple[str, ...]:
    """Return a sentence for each (number, noun, rest of the sentence) whose number is not 0."""
    return tuple(f"{counted(number, noun)}{more}" for number, noun, more in facts if number)


def stored_data(app: Any) -> StoredData:
    """Return the data under the app's prefix, for all groups of limits of its tasks."""
    app.finalize(auto=True)  # binds the tasks, which register their groups
    settings, places = settings_of(app), _places(app)
    found = [count_keys(settings.url, keys) for keys in places]
    groups = list(readers(app))
    workers: dict[str, int] = {}
    for service in chain.from_iterable(reader.services() for reader in groups):
        # A worker of several groups calls in each of them.
        workers[service.code] = max(workers.get(service.code, 0), service.workers)
    remembered = [each.state in _REMEMBERED for reader in groups for each in reader.locks(_MOST)]
    spaces = [keys.key("") for keys in places]
    sizes = [each.size for each in found]
    ours = {each.removesuffix(":") for each in spaces}
    return StoredData(
        settings.prefix,
        tuple(spaces),
        sum(each.keys for each in found),
        None if None in sizes else sum(each or 0 for each in sizes),
        workers=sum(workers.values()),
        parked=sum(1 for reader in groups for _ in reader.parked_ids(None)),
        held=sum(len(reader.holders(None, _MOST)) for reader in groups) + sum(each.held for each in found),
        locks=remembered.count(False),
        remembered=remembered.count(True),
        set_aside=sum(len(reader.set_aside(_MOST)) for reader in groups),
        others=tuple(sorted(set(chain.from_iterable(each.others for each in found)) - ours)),
    )


def _places(app: Any) -> list[Keys]:
    """Return the key spaces: one for each group, and that of the primitives, which have no group."""
    prefix = settings_of(app).prefix
    return [Keys(prefix, group) for group in sorted({"", *(each.group for each in readers(app))})]


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
