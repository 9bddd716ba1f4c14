"""Publish parked tasks to the queues that they came from."""

from __future__ import annotations

import logging
import uuid
from collections import Counter
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from kombu import Producer

from celery_throttle.control.queues import reached
from celery_throttle.control.reader import AT_ONCE
from celery_throttle.core.wording import signature
from celery_throttle.errors import StoreUnavailable
from celery_throttle.store.draining import Drained, read_lent
from celery_throttle.store.parcel import unpack

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from celery_throttle.control.reader import Reader
    from celery_throttle.store.draining import Lent
    from celery_throttle.store.parked_tasks import ParkedId

__all__ = ["borrow", "drain"]

logger = logging.getLogger(__name__)

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
