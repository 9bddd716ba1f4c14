"""The broker: which queues there are, how many messages wait in them, and which ones the workers consume."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from kombu.exceptions import InconsistencyError
from kombu.transport import virtual

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator

__all__ = ["NOBODY_ANSWERED", "Depth", "Slots", "consumed", "depths", "free_slots", "named", "reached"]

logger = logging.getLogger(__name__)

#: Seconds that workers have to answer.
_PATIENCE = 1.0
#: AMQP's.
_NO_SUCH_QUEUE = "404"
#: What could not be looked at if it returns None.
NOBODY_ANSWERED = "Which queues the workers consume: none answered a remote control command within a second."
#: Options that make it so, by kind of broker; kombu's own is for the moment of connecting, and not for Redis.
_TIMEOUTS = {"redis": ("socket_connect_timeout", "socket_timeout"), "amqp": ("read_timeout", "write_timeout")}


@contextmanager
def reached(connect: Callable[..., Any], patience: float, **options: Any) -> Iterator[Any]:
    """Connect, and wait no longer than so many seconds each time, if the broker is away or frozen.

    Raises:
        kombu.exceptions.OperationalError: it is.
    """
    with connect(connect_timeout=patience, transport_options=options) as connection:
        for option in _TIMEOUTS.get(connection.transport.driver_type, ()):
            connection.transport_options.setdefault(option, patience)
        connection.ensure_connection(max_retries=1, interval_start=0, timeout=patience)
        yield connection


def consumed(app: Any) -> set[str] | None:
    """Return the queues of the workers that answer, None if none does or none can be asked."""
    if not app.conf.broker_write_url:  # Celery would ask one that nobody has named
        return None
    try:
        with reached(app.connection_for_write, _PATIENCE) as connection:
            asks = app.control.inspect(timeout=_PATIENCE, connection=connection)
            answers: dict[str, list[dict[str, Any]]] | None = asks.active_queues()
    except Exception:  # noqa: BLE001 - each broker has its own, and many have no remote control
        return None
    return {queue["name"] for queues in answers.values() for queue in queues} if answers else None


class Slots(NamedTuple):
    """A worker that takes parked tasks: of which queues, and how many free slots its pool has."""

    queues: frozenset[str]
    free: int


def free_slots(app: Any) -> list[Slots] | None:
    """Return the slots of the workers that answer ``inspect throttle``; None if none does or none can be asked."""
    if not app.conf.broker_write_url:
        return None
    try:
        with reached(app.connection_for_write, _PATIENCE) as connection:
            answers = app.control.broadcast("throttle", reply=True, timeout=_PATIENCE, connection=connection) or []
        workers = [each for answer in answers for each in answer.values() if each.get("groups")]
        return [_slots_of(each) for each in workers] or None
    except Exception:  # noqa: BLE001 - each broker has its own, and many have no remote control
        return None


def _slots_of(worker: dict[str, Any]) -> Slots:
    queues = (queue for group in worker["groups"] for queue in group["queues"])
    return Slots(frozenset(queues), int(worker["slots"]["free"]))


def named(app: Any) -> set[str]:
    """Return the queues that the app's configuration names; not those of broadcasts, of which each worker has one."""
    if not app.conf.broker_read_url:
        return set()
    queues = app.amqp.queues.values()
    return {each.name for each in queues if each.exchange is None or each.exchange.type != "fanout"}


class Depth(NamedTuple):
    """What the broker says of a queue.

    Attributes:
        messages: that wait, without those that a worker has taken and keeps unacknowledged; None: it does not say.
        exists: whether there is such a queue; None: it does not say.
    """

    messages: int | None = None
    exists: bool | None = None


def depths(app: Any, names: Iterable[str], known: Container[str] = ()) -> dict[str, Depth]:
    """Return how many messages wait in these queues of the broker, and whether those exist that are not known."""
    found = dict.fromkeys(names, Depth())
    if not found or not app.conf.broker_read_url:
        return found
    try:
        exchanges = [each.exchange.name for each in app.amqp.queues.values() if each.exchange is not None]
        with reached(app.connection_for_read, _PATIENCE) as connection:
            for name in found:
                # What the binding says of a queue that is known anyway is not worth a question for each exchange.
                found[name] = _depth(connection, name, () if name in known else dict.fromkeys([name, *exchanges]))
    except Exception:
        logger.debug("The broker does not say how many messages wait in its queues", exc_info=True)
    return found


def _depth(connection: Any, name: str, exchanges: Iterable[str]) -> Depth:
    with connection.channel() as channel:  # an error of AMQP closes it
        if isinstance(channel, virtual.Channel) and type(channel)._size is virtual.Channel._size:  # noqa: SLF001
            return Depth()  # kombu's own default, which is always 0
        try:
            count = int(channel.queue_declare(queue=name, passive=True).message_count)
        except connection.channel_errors as error:
            if str(getattr(error, "reply_code", "")) != _NO_SUCH_QUEUE:
                return Depth()
            return Depth(0, _is_bound(channel, name, exchanges))
        return Depth(count, True if count or _knows_its_queues(channel) else None)


def _knows_its_queues(channel: Any) -> bool:
    """Whether an undeclared queue is refused; kombu's own default is that there is any."""
    return not isinstance(channel, virtual.Channel) or type(channel)._has_queue is not virtual.Channel._has_queue  # noqa: SLF001


def _is_bound(channel: Any, queue: str, exchanges: Iterable[str]) -> bool:
    """Whether a queue that has no messages was declared: in Redis an empty list is none, but its binding stays."""
    if not isinstance(channel, virtual.Channel):
        return False
    for exchange in exchanges:
        try:
            table = channel.get_table(exchange)
        except (KeyError, InconsistencyError):  # nothing is bound to it
            continue
        if any(bound[-1] == queue for bound in table):
            return True
    return False
